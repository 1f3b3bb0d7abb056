// Qwen3 (dense): no biases; each head of q and k is normalized before rope.
#include "model/architectures.h"
#include "model/decoder_shape.h"
#include "model/rope_scaling.h"

namespace tandem {

Status read_qwen3(const ConfigReader& keys, ModelConfig* c) {
  CHECK_OK(read_decoder_shape(keys, c));
  c->has_qk_norm = true;
  CHECK_ASSIGN(RopeParams rope,
               read_rope(keys, c->layers[0].head_dim, c->context_tokens, RopeStyle::kNeox));
  c->ropes = {rope};
  return ok_status();
}

}  // namespace tandem
