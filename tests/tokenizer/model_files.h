// The real models that the golden tests read. A missing model fails the test.
#pragma once

#include <fcntl.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "gguf/gguf_reader.h"
#include "small_vocabulary.h"
#include "tokenizer/tokenizer.h"
#include "worker/vocabulary_gguf.h"

namespace tandem {

inline Vocabulary load_vocabulary(const std::string& file) {
  const char* folder = std::getenv("TANDEM_MODELS_DIR");
  INFO("TANDEM_MODELS_DIR must name the folder of the real models; it should hold " << file);
  REQUIRE(folder != nullptr);
  const std::string path = std::string(folder) + "/" + file;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(fd.valid());
  std::vector<GgufFile> files;
  files.push_back({std::move(fd), file});
  auto model = GgufModel::open(std::move(files));
  if (!model.ok()) FAIL(model.status().message());
  auto vocabulary = read_vocabulary(**model);
  if (!vocabulary.ok()) FAIL(vocabulary.status().message());
  return std::move(vocabulary).value();
}

inline std::unique_ptr<Tokenizer> load_tokenizer(const std::string& file) {
  auto tokenizer = Tokenizer::create(load_vocabulary(file));
  if (!tokenizer.ok()) FAIL(tokenizer.status().message());
  return std::move(tokenizer).value();
}

inline nlohmann::json load_golden(const std::string& name) {
  const std::string path =
      std::string(TANDEM_SOURCE_DIR) + "/tests/golden/reference/" + name + ".json";
  std::ifstream in(path);
  INFO(path);
  REQUIRE(in.good());
  return nlohmann::json::parse(in);
}

}  // namespace tandem
