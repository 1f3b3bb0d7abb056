// The file of weights.lean beside the model: the same one is taken, any other is refused by what differs.
#include "worker/lean_model.h"

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "worker/vocabulary_gguf.h"

namespace tandem {
namespace {

std::string bytes_of(const std::string& name) {
  std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/tests/golden/families/" + name + ".gguf", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  REQUIRE_FALSE(bytes.empty());
  return bytes;
}

std::vector<GgufFile> file_of(const std::string& bytes, const char* name) {
  UniqueFd fd(memfd_create("lean_model_test", MFD_CLOEXEC));
  REQUIRE(write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  std::vector<GgufFile> files;
  files.push_back({std::move(fd), name});
  return files;
}

// Of llama.gguf with this beside it; "": taken.
std::string refusal(const std::string& lean) {
  auto file = GgufModel::open(file_of(bytes_of("llama"), "/m/llama.gguf"));
  REQUIRE(file.ok());
  auto config = read_model_config(**file);
  auto vocabulary = read_vocabulary(**file);
  REQUIRE((config.ok() && vocabulary.ok()));
  auto opened = open_lean_model(file_of(lean, "/m/lean.gguf"), "/m/llama.gguf", *config, *vocabulary, 0);
  if (!opened.ok()) return opened.status().message();
  CHECK(opened->weights.layers.size() == 2);
  CHECK(opened->weights.token_embedding.n_rows == config->vocab_size);
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("lean file: the same model is taken, with other weights too") {
  std::string other = bytes_of("llama");
  other[other.size() - 7] ^= 1;
  CHECK(refusal(bytes_of("llama")) == "");
  CHECK(refusal(other) == "");
}

TEST_CASE("lean file: another model is refused by what differs, with the remedy") {
  CHECK(refusal(bytes_of("qwen2")) ==
        "/m/lean.gguf is not of the same model as /m/llama.gguf: architecture must be llama, found qwen2; make it of that file, with "
        "tandem quantize --to q4_0, or name another in weights.lean");
  const std::string word = "\xc4\xa0the";  // the first in the list of tokens
  const std::string message = refusal(replaced(bytes_of("llama"), word, "\xc4\xa0tha"));
  CHECK(message.find("token 258 must be \"\\xc4\\xa0the\", found \"\\xc4\\xa0tha\"") != std::string::npos);
}

TEST_CASE("lean file: what is no whole model names the file") {
  const std::string whole = bytes_of("llama");
  for (const std::string& bytes : {std::string(), whole.substr(0, 1000), whole.substr(0, whole.size() - 1), std::string(4096, 'x'),
                                   replaced(whole, "blk.1.ffn_up.weight", "blk.1.ffn_uq.weight")}) {
    const std::string message = refusal(bytes);
    INFO(message);
    CHECK(message.starts_with("/m/lean.gguf: "));
  }
}

}  // namespace tandem
