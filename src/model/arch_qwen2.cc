// Qwen2 and Qwen2.5: llama with biases on q, k and v, and rope over halves.
#include "model/architectures.h"
#include "model/decoder_shape.h"
#include "model/rope_scaling.h"

namespace tandem {

Status read_qwen2(const ConfigReader& keys, ModelConfig* c) {
  CHECK_OK(read_decoder_shape(keys, c));
  c->has_qkv_bias = true;
  CHECK_ASSIGN(RopeParams rope,
               read_rope(keys, c->layers[0].head_dim, c->context_tokens, RopeStyle::kNeox));
  c->ropes = {rope};
  return ok_status();
}

}  // namespace tandem
