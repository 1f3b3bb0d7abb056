// Files as the worker gets them: descriptors, split sets, things that are no files.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/process_memory.h"
#include "gguf/gguf_reader.h"
#include "tests/gguf/gguf_writer.h"
#include "tests/temp_folder.h"

using namespace tandem;
using Catch::Matchers::Contains;
using tandem::testing::GgufWriter;

namespace {

Result<std::unique_ptr<GgufModel>> open_paths(const std::vector<std::string>& paths) {
  std::vector<GgufFile> files;
  for (const auto& p : paths)
    files.push_back({UniqueFd(::open(p.c_str(), O_RDONLY | O_CLOEXEC)), p});
  return GgufModel::open(std::move(files));
}

std::string part(int no, int count, int n_tensors, const std::string& tensor) {
  GgufWriter w;
  if (no == 0) w.text("general.architecture", "llama");
  w.u16("split.no", static_cast<uint16_t>(no)).u16("split.count", static_cast<uint16_t>(count));
  w.i32("split.tensors.count", n_tensors).f32_tensor(tensor, {8}, static_cast<float>(no));
  return w.bytes();
}

}  // namespace

TEST_CASE("a split model opens as one, and only when its parts agree") {
  testing::TempFolder dir;
  auto p1 = dir.put("m-00001-of-00003.gguf", part(0, 3, 3, "a"));
  auto p2 = dir.put("m-00002-of-00003.gguf", part(1, 3, 3, "b"));
  auto p3 = dir.put("m-00003-of-00003.gguf", part(2, 3, 3, "c"));
  auto paths = GgufModel::split_paths(p2);
  REQUIRE(paths.ok());
  REQUIRE(*paths == std::vector<std::string>{p1, p2, p3});
  auto model = open_paths(*paths);
  REQUIRE(model.status().message() == "");
  REQUIRE((*model)->tensors().size() == 3);
  REQUIRE(*(*model)->get_string("general.architecture") == "llama");
  float value = 0;
  std::memcpy(&value, (*model)->find_tensor("c")->data, 4);
  REQUIRE(value == 2.0f);
  (*model)->release_pages();
  std::memcpy(&value, (*model)->find_tensor("b")->data, 4);
  REQUIRE(value == 1.0f);

  CHECK_THAT(open_paths({p1}).status().message(),
             Contains("\"split.count\" is 3, but 1 file was given"));
  CHECK_THAT(open_paths({p1, p3, p2}).status().message(),
             Contains("\"split.no\" must be 1 for part 2 of 3, found 2"));
  auto same = dir.put("same", part(2, 3, 3, "a"));
  CHECK_THAT(open_paths({p1, p2, same}).status().message(),
             Contains("tensor \"a\" is in an earlier part too"));
  auto short_count = dir.put("short", part(0, 3, 4, "a"));
  CHECK_THAT(open_paths({short_count, p2, p3}).status().message(),
             Contains("\"split.tensors.count\" is 4, but all parts together have 3"));
  GgufWriter whole;
  whole.f32_tensor("w", {8});
  auto other = dir.put("other", whole.bytes());
  CHECK_THAT(open_paths({p1, p2, other}).status().message(),
             Contains("\"split.count\" is missing"));
  REQUIRE(open_paths({other}).ok());
}

TEST_CASE("names of parts") {
  CHECK(*GgufModel::split_paths("x.gguf") == std::vector<std::string>{"x.gguf"});
  CHECK(*GgufModel::split_paths("m-0001-of-00002.gguf") ==
        std::vector<std::string>{"m-0001-of-00002.gguf"});
  CHECK(GgufModel::split_paths("m-00001-of-00001.gguf")->size() == 1);
  CHECK_THAT(GgufModel::split_paths("m-00004-of-00003.gguf").status().message(),
             Contains("from 1 to 3, found 4"));
  CHECK_FALSE(GgufModel::split_paths("m-00000-of-00003.gguf").ok());
}

TEST_CASE("C-39: what is no file is named") {
  testing::TempFolder dir;
  CHECK_THAT(open_paths({dir.path}).status().message(), Contains("is a directory"));
  CHECK_THAT(open_paths({"/dev/null"}).status().message(), Contains("not a regular file"));
  CHECK_THAT(open_paths({dir.put("empty", "")}).status().message(), Contains("empty (0 bytes)"));
  CHECK_FALSE(open_paths({dir.path + "/missing"}).ok());
  CHECK_FALSE(GgufModel::open({}).ok());
}

// A file cut in place while it is mapped can only be met with SIGBUS; it must end a worker, never
// the supervisor (which maps no model). Shown in a child.
TEST_CASE(
    "C-39: a file cut while mapped ends the process that reads it with SIGBUS, nothing else") {
  testing::TempFolder dir;
  GgufWriter w;
  w.f32_tensor("big", {65536}, 1.0f);
  std::string path = dir.put("m.gguf", w.bytes());
  pid_t child = fork();
  if (child == 0) {
    signal(SIGBUS, SIG_DFL);  // past the test program's and the sanitizer's handlers
    auto model = open_paths({path});
    if (!model.ok() || truncate(path.c_str(), 4096) != 0) _exit(1);
    volatile uint8_t last = (*model)->find_tensor("big")->data[65536 * 4 - 1];
    _exit(last == 0 ? 2 : 3);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGBUS);
}

TEST_CASE("the real models open", "[golden]") {
  const char* dir = std::getenv("TANDEM_MODELS_DIR");
  if (dir == nullptr) FAIL("TANDEM_MODELS_DIR is not set: the folder of the two test models");
  auto smol = open_paths({std::string(dir) + "/SmolLM2-135M-Instruct.Q4_1.gguf"});
  REQUIRE(smol.status().message() == "");
  CHECK((*smol)->tensors().size() == 272);
  CHECK(*(*smol)->get_int("llama.block_count") == 30);
  CHECK((*(*smol)->get_array("tokenizer.ggml.merges"))->strings.size() == 48900);
  auto gemma = open_paths({std::string(dir) + "/gemma-3-270m-q4_k_m.gguf"});
  REQUIRE(gemma.status().message() == "");
  CHECK((*gemma)->tensors().size() == 236);
  CHECK((*(*gemma)->get_array("tokenizer.ggml.tokens"))->strings.size() == 262144);
}

TEST_CASE("pages of a part of a real file are given back, and come back with the same bytes", "[golden]") {
  const char* dir = std::getenv("TANDEM_MODELS_DIR");
  if (dir == nullptr) FAIL("TANDEM_MODELS_DIR is not set: the folder of the two test models");
  auto model = open_paths({std::string(dir) + "/SmolLM2-135M-Instruct.Q4_1.gguf"});
  REQUIRE(model.ok());
  const GgufTensor* tensor = (*model)->find_tensor("token_embd.weight");
  REQUIRE(tensor != nullptr);
  const std::vector<uint8_t> copy(tensor->data, tensor->data + tensor->n_bytes);
  const int64_t before = read_process_memory()->rss_bytes;
  (*model)->release_pages(tensor->data, tensor->n_bytes);
  const int64_t after = read_process_memory()->rss_bytes;
  CHECK(before - after > static_cast<int64_t>(tensor->n_bytes) * 9 / 10);
  CHECK(std::memcmp(tensor->data, copy.data(), copy.size()) == 0);
  (*model)->release_pages(copy.data(), copy.size());  // not of the file: untouched
  CHECK(std::memcmp(tensor->data, copy.data(), copy.size()) == 0);
}

TEST_CASE("C-39: a real file cut at a tenth, at 99 % and by its last byte", "[golden]") {
  const char* dir = std::getenv("TANDEM_MODELS_DIR");
  if (dir == nullptr) FAIL("TANDEM_MODELS_DIR is not set: the folder of the two test models");
  UniqueFd fd(::open((std::string(dir) + "/SmolLM2-135M-Instruct.Q4_1.gguf").c_str(),
                     O_RDONLY | O_CLOEXEC));
  REQUIRE(fd.valid());
  const size_t size =
      std::filesystem::file_size(std::string(dir) + "/SmolLM2-135M-Instruct.Q4_1.gguf");
  void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  REQUIRE(bytes != MAP_FAILED);
  for (size_t cut : {size / 10, size / 100 * 99, size - 1}) {
    auto model = GgufModel::parse(static_cast<const uint8_t*>(bytes), cut, "smol.gguf");
    CHECK(model.status().code() == StatusCode::kDataLoss);
    CHECK_THAT(model.status().message(),
               Contains("truncated: have " + std::to_string(cut) + " bytes, need " +
                        std::to_string(size) + " bytes"));
  }
  munmap(bytes, size);
}
