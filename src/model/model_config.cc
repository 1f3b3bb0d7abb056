// Metadata -> ModelConfig: what is common to all families, before and after the family's own
// reader.
#include "model/model_config.h"

#include <fmt/format.h>

#include "model/architectures.h"
#include "model/decoder_shape.h"
#include "model/float_tensor.h"
#include "model/weights.h"

namespace tandem {
namespace {

constexpr int64_t kMaxVocabulary = 1 << 24;

// Adapters, projectors and importance matrices are GGUF files too.
Status check_kind(const GgufModel& file) {
  auto kind = file.get_string("general.type");
  if (!kind.ok())
    return kind.status().code() == StatusCode::kNotFound ? ok_status() : kind.status();
  if (*kind == "model") return ok_status();
  return invalid_argument(fmt::format(
      "{}: metadata key \"general.type\" must be \"model\", found \"{}\"", file.name(), *kind));
}

Status read_vocabulary_size(const GgufModel& file, ModelConfig* c) {
  const GgufTensor* t = file.find_tensor("token_embd.weight");
  if (t == nullptr)
    return invalid_argument(file.name() +
                            ": tensor \"token_embd.weight\" is missing; every model needs it");
  if (t->dims[0] != c->hidden_dim || t->dims[2] * t->dims[3] != 1 || t->dims[1] > kMaxVocabulary)
    return invalid_argument(
        fmt::format("{}: tensor \"token_embd.weight\": shape must be [{}, 1..{}], found {}",
                    file.name(), c->hidden_dim, kMaxVocabulary, shape_text(*t)));
  c->vocab_size = static_cast<int>(t->dims[1]);
  auto tokens = file.get_array("tokenizer.ggml.tokens");
  if (!tokens.ok())
    return tokens.status().code() == StatusCode::kNotFound ? ok_status() : tokens.status();
  if ((*tokens)->count == static_cast<uint64_t>(c->vocab_size)) return ok_status();
  return invalid_argument(
      fmt::format("{}: metadata key \"tokenizer.ggml.tokens\" must have {} entries (rows of"
                  " token_embd.weight), found {}",
                  file.name(), c->vocab_size, (*tokens)->count));
}

}  // namespace

Result<ModelConfig> read_model_config(const GgufModel& file, int context_limit) {
  CHECK_OK(check_kind(file));
  ModelConfig c;
  auto architecture = file.get_string("general.architecture");
  if (!architecture.ok())
    return invalid_argument(
        fmt::format("{}; allowed: {}", architecture.status().message(), architecture_names()));
  c.architecture = *architecture;
  const Architecture* row = find_architecture(c.architecture);
  if (row == nullptr)
    return unimplemented(
        fmt::format("{}: metadata key \"general.architecture\": \"{}\" is not served; allowed: {}",
                    file.name(), c.architecture, architecture_names()));
  if (auto name = file.get_string("general.name"); name.ok()) c.name = *name;
  CHECK_OK(row->read(ConfigReader(file, c.architecture, context_limit), &c));
  CHECK_OK(read_vocabulary_size(file, &c));
  c.tied_embeddings = file.find_tensor("output.weight") == nullptr;
  for (const GgufTensor& t : file.tensors())
    c.n_parameters += t.dims[0] * t.dims[1] * t.dims[2] * t.dims[3];
  group_layers(&c);
  return c;
}

}  // namespace tandem
