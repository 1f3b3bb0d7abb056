// Gemma 3 (text): five layers with a sliding window, then a full one; local layers have a rope base
// of their own and no scaling. Norm weights come with the +1 already added by the converter.
#include <fmt/format.h>

#include <cmath>

#include "model/architectures.h"
#include "model/decoder_shape.h"
#include "model/rope_scaling.h"

namespace tandem {
namespace {

constexpr int kDefaultPattern = 6;       // every 6th layer is full (Gemma 3 report, section 2)
constexpr double kLocalTheta = 10000.0;  // the same
constexpr int kLayersOf27B = 62;

// Which layers are windowed: the pattern length, or one bool a layer.
Status read_windows(const ConfigReader& keys, ModelConfig* c) {
  CHECK_ASSIGN(int window, keys.integer("attention.sliding_window", 1, 1 << 30));
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  std::vector<int> is_local;
  if (auto array = keys.file().get_array(keys.key(kPattern)); array.ok()) {
    CHECK_ASSIGN(is_local, keys.per_layer(kPattern, c->n_layers, 0, 1));
  } else {
    CHECK_ASSIGN(int pattern, keys.integer(kPattern, 1, 1 << 20, kDefaultPattern));
    for (int i = 0; i < c->n_layers; ++i) is_local.push_back((i + 1) % pattern != 0);
  }
  for (size_t i = 0; i < c->layers.size(); ++i) {
    c->layers[i].rope = is_local[i];
    // A window that no position leaves is no window, but the layer keeps its local rope.
    c->layers[i].window = is_local[i] && window < c->context_tokens ? window : 0;
  }
  return ok_status();
}

}  // namespace

Status read_gemma3(const ConfigReader& keys, ModelConfig* c) {
  CHECK_OK(read_decoder_shape(keys, c));
  CHECK_OK(read_windows(keys, c));
  int head_dim = c->layers[0].head_dim;
  CHECK_ASSIGN(RopeParams global, read_rope(keys, head_dim, c->context_tokens, RopeStyle::kNeox));
  CHECK_ASSIGN(double local_theta, keys.real("rope.freq_base_swa", 1.0001, 1e12, kLocalTheta));
  c->ropes = {global, plain_rope(global.dim, local_theta, RopeStyle::kNeox)};
  c->activation = Activation::kGeluTanhGate;
  c->embedding_scale = std::sqrt(static_cast<float>(c->hidden_dim));
  c->has_qk_norm = true;
  c->has_post_norms = true;
  // The 27B model divides by the width a head would have had; no key of the file says so.
  if (c->n_layers == kLayersOf27B && !keys.has("attention.scale"))
    c->attention_scale = 1.0f / std::sqrt(static_cast<float>(c->hidden_dim) /
                                          static_cast<float>(c->layers[0].n_heads));
  return ok_status();
}

}  // namespace tandem
