// The weights of a model by role: views into the mapped file, shapes already checked against ModelConfig.
// Fused tensors of the file (phi3's attn_qkv and gate+up) are split into row ranges here, so that no backend
// knows about them. Views live as long as the GgufModel.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "gguf/gguf_reader.h"
#include "kernels/quant_traits.h"
#include "model/model_config.h"

namespace tandem {

struct WeightView {  // [n_rows][n_cols], rows of `type` one after another
  GgmlType type = GgmlType::kF32;
  int64_t n_rows = 0, n_cols = 0;
  const uint8_t* data = nullptr;
  explicit operator bool() const { return data != nullptr; }
};
// Bytes of a row.
int64_t row_bytes(const WeightView& w);

struct LayerWeights {
  std::vector<float> attn_norm, ffn_norm;              // [hidden_dim]
  std::vector<float> attn_post_norm, ffn_post_norm;    // gemma3; else empty
  std::vector<float> q_norm, k_norm;                   // [head_dim] or empty
  std::vector<float> bq, bk, bv, bo;                   // biases or empty
  WeightView wq, wk, wv, wo, w_gate, w_up, w_down;
};

struct ModelWeights {
  WeightView token_embedding;       // [vocab_size][hidden_dim]
  WeightView output;                // the same view as token_embedding when tied
  std::vector<float> output_norm;   // [hidden_dim]
  std::vector<LayerWeights> layers;
};

// Whether a set of half the bits of each Q8_0 matrix saves much, by bytes of all matrices: a model of fewer bits with a few
// Q8_0 matrices, an output head say, has no lean set. Of whole models: parts of one (stage.h) do as the whole.
bool is_mostly_q8_0(const ModelWeights& weights);

// Reads metadata -> ModelConfig through the table of architectures (architectures.cc). Unknown
// architecture, missing or malformed keys: an error with file, key, found and allowed. context_limit: the
// operator's bound on the context (0: none); it only decides which longrope factors apply.
Result<ModelConfig> read_model_config(const GgufModel& file, int context_limit = 0);
// Finds and checks every tensor that `config` needs, and refuses a tensor that nobody would use: the output
// would be wrong without it. Norms and biases are converted to float and checked to be finite.
Result<ModelWeights> load_weights(const GgufModel& file, const ModelConfig& config);

}  // namespace tandem
