// Arguments of tool mode: foreign text, so every fault is a message.
#include "worker/tool_args.h"

#include <catch2/catch.hpp>

namespace tandem {

TEST_CASE("tool arguments: descriptors, values, flags") {
  const auto args =
      parse_tool_args({"--model-fds", "4,5", "--model-names", "a.gguf,b.gguf", "--text-fd", "6",
                       "--made-fd", "7", "--json", "--prompt", "64", "--force-isa", ""});
  REQUIRE(args.ok());
  CHECK(args->model_fds == std::vector<int>{4, 5});
  CHECK(args->model_names == std::vector<std::string>{"a.gguf", "b.gguf"});
  CHECK(args->text_fd == 6);
  CHECK(args->made_fd == 7);
  CHECK(args->out_fd == -1);
  CHECK(args->has("--json"));
  CHECK_FALSE(args->has("--ids"));
  CHECK(*args->number("--prompt", 512, 1, 100) == 64);
  CHECK(*args->number("--gen", 128, 1, 100) == 128);
  CHECK_FALSE(args->number("--prompt", 512, 1, 10).ok());
  CHECK(args->text("--force-isa", "best") == "best");
}

TEST_CASE("tool arguments: a missing name is filled, not read past the end") {
  const auto args = parse_tool_args({"--model-fds", "4,5", "--model-names", "a"});
  REQUIRE(args.ok());
  CHECK(args->model_names.size() == 2);
}

TEST_CASE("tool arguments: faults are named") {
  for (const std::vector<std::string>& bad : {std::vector<std::string>{"--nonsense", "1"},
                                              {"--prompt"},
                                              {"--model-fds", ""},
                                              {"--model-fds", "4,"},
                                              {"--model-fds", "-1"},
                                              {"--model-fds", "4x"},
                                              {"--text-fd", "99999999999999999999"}}) {
    const auto args = parse_tool_args(bad);
    REQUIRE_FALSE(args.ok());
    CHECK(args.status().message().find(bad[0]) != std::string::npos);
  }
  CHECK_FALSE(parse_numbers("--batch", "1,,2", 1, 10).ok());
  CHECK_FALSE(parse_numbers("--batch", "11", 1, 10).ok());
  CHECK(*parse_numbers("--batch", "1,10", 1, 10) == std::vector<int>{1, 10});
}

}  // namespace tandem
