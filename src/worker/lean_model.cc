#include "worker/lean_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "gguf/gguf_parser.h"
#include "model/config_difference.h"
#include "worker/vocabulary_gguf.h"

namespace tandem {
namespace {

// The first token that is another one. config_difference() has compared how many there are.
std::optional<ConfigDifference> vocabulary_difference(const Vocabulary& model, const Vocabulary& other) {
  const auto [a, b] = std::mismatch(model.tokens.begin(), model.tokens.end(), other.tokens.begin(), other.tokens.end());
  if (a == model.tokens.end() || b == other.tokens.end()) return std::nullopt;
  return ConfigDifference{fmt::format("token {}", a - model.tokens.begin()), '"' + printable(*a) + '"', '"' + printable(*b) + '"'};
}

}  // namespace

Result<LeanModel> open_lean_model(std::vector<GgufFile> files, const std::string& model_name, const ModelConfig& config,
                                  const Vocabulary& vocabulary, int context_limit) {
  LeanModel lean;
  CHECK_ASSIGN(lean.file, GgufModel::open(std::move(files)));
  CHECK_ASSIGN(const ModelConfig own, read_model_config(*lean.file, context_limit));
  std::optional<ConfigDifference> difference = config_difference(config, own);
  if (!difference) {
    CHECK_ASSIGN(const Vocabulary words, read_vocabulary(*lean.file));
    difference = vocabulary_difference(vocabulary, words);
  }
  if (difference)
    return invalid_argument(fmt::format("{} is not of the same model as {}: {} must be {}, found {}; make it of that file, with tandem "
                                        "quantize --to q4_0, or name another in weights.lean",
                                        lean.file->name(), model_name, difference->what, difference->wanted, difference->found));
  CHECK_ASSIGN(lean.weights, load_weights(*lean.file, own));
  return lean;
}

}  // namespace tandem
