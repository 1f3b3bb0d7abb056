// Any bytes as a model file: metadata, configuration, weights, vocabulary, tokenizer, chat template.
#include "fuzz_target.h"
#include "gguf/gguf_reader.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "worker/vocabulary_gguf.h"

namespace tandem {
namespace {

void read_weights(const GgufModel& model) {
  const auto config = read_model_config(model);
  if (!config.ok()) return;
  const auto weights = load_weights(model, *config);
  if (!weights.ok()) return;
  FUZZ_REQUIRE(weights->layers.size() == static_cast<size_t>(config->n_layers));
}

void read_tokenizer(const GgufModel& model) {
  auto vocabulary = read_vocabulary(model);
  if (!vocabulary.ok()) return;
  const auto chat = ChatTemplate::create(vocabulary->chat_template, *vocabulary);
  const auto tokenizer = Tokenizer::create(std::move(vocabulary).value());
  if (!tokenizer.ok()) return;
  std::vector<int32_t> ids;
  (void)(*tokenizer)->encode("Hello <s> world", {true, true}, &ids);
  for (const int32_t id : ids) FUZZ_REQUIRE(id >= 0 && id < (*tokenizer)->n_tokens());
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::fuzz::planted_fault(data, size);
  const auto model = tandem::GgufModel::parse(data, size, "fuzz.gguf");
  if (!model.ok()) return 0;
  for (const auto& tensor : (*model)->tensors()) {
    FUZZ_REQUIRE(tensor.data >= data && tensor.data + tensor.n_bytes <= data + size);
  }
  tandem::read_weights(**model);
  tandem::read_tokenizer(**model);
  return 0;
}
