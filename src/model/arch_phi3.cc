// Phi-3, Phi-3.5 and Phi-4-mini (dense): qkv and gate+up are fused in the file (weights.cc splits
// them), longrope factors as tensors, rope over part of a head in Phi-4-mini.
#include "model/architectures.h"
#include "model/decoder_shape.h"
#include "model/rope_scaling.h"

namespace tandem {

Status read_phi3(const ConfigReader& keys, ModelConfig* c) {
  CHECK_OK(read_decoder_shape(keys, c));
  CHECK_OK(read_uniform_window(keys, c));  // Phi-3-mini-4k: 2047
  CHECK_ASSIGN(RopeParams rope,
               read_rope(keys, c->layers[0].head_dim, c->context_tokens, RopeStyle::kNeox));
  c->ropes = {rope};
  return ok_status();
}

}  // namespace tandem
