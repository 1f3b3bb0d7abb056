// Llama 2 and 3, Mistral, SmolLM2, TinyLlama. The converter permutes rows of wq and wk so that the
// two values that turn together are neighbours: hence interleaved rope.
#include "model/architectures.h"
#include "model/decoder_shape.h"
#include "model/rope_scaling.h"

namespace tandem {

Status read_llama(const ConfigReader& keys, ModelConfig* c) {
  CHECK_OK(read_decoder_shape(keys, c));
  CHECK_OK(read_uniform_window(keys, c));  // Mistral 7B v0.1
  c->has_qkv_bias = keys.file().find_tensor("blk.0.attn_q.bias") != nullptr;
  CHECK_ASSIGN(RopeParams rope,
               read_rope(keys, c->layers[0].head_dim, c->context_tokens, RopeStyle::kInterleaved));
  c->ropes = {rope};
  return ok_status();
}

}  // namespace tandem
