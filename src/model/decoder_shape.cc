#include "model/decoder_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

// Far above any model in sight; they keep every product of two of them below 2^63 and bound loops.
constexpr int kMaxLayers = 4096, kMaxWidth = 1 << 20, kMaxHeads = 4096, kMaxHeadDim = 1024;
constexpr int kMaxContext = 1 << 30;

Status read_heads(const ConfigReader& keys, ModelConfig* c) {
  CHECK_ASSIGN(auto n_heads, keys.per_layer("attention.head_count", c->n_layers, 1, kMaxHeads));
  CHECK_ASSIGN(auto n_kv_heads,
               keys.per_layer("attention.head_count_kv", c->n_layers, 1, kMaxHeads, n_heads));
  for (size_t i = 0; i < n_heads.size(); ++i) {
    if (n_heads[i] % n_kv_heads[i] != 0)
      return keys.bad("attention.head_count_kv",
                      fmt::format("a divisor of head_count {}", n_heads[i]),
                      fmt::format("{} for layer {}", n_kv_heads[i], i));
    c->layers[i].n_heads = n_heads[i];
    c->layers[i].n_kv_heads = n_kv_heads[i];
  }
  if (!keys.has("attention.key_length") && c->hidden_dim % n_heads[0] != 0)
    return keys.bad(
        "attention.head_count",
        fmt::format("a divisor of embedding_length {} (no key_length is given)", c->hidden_dim),
        std::to_string(n_heads[0]));
  CHECK_ASSIGN(int head_dim,
               keys.integer("attention.key_length", 2, kMaxHeadDim, c->hidden_dim / n_heads[0]));
  if (head_dim % 2 != 0 || head_dim < 2 || head_dim > kMaxHeadDim)
    return keys.bad(
        keys.has("attention.key_length") ? "attention.key_length" : "attention.head_count",
        fmt::format("such that a head has an even size from 2 to {}", kMaxHeadDim),
        fmt::format("a head of {}", head_dim));
  CHECK_ASSIGN(int value_dim, keys.integer("attention.value_length", 2, kMaxHeadDim, head_dim));
  if (value_dim != head_dim)
    return keys.bad("attention.value_length", fmt::format("equal to the key length {}", head_dim),
                    std::to_string(value_dim));
  for (LayerConfig& layer : c->layers) layer.head_dim = head_dim;
  return ok_status();
}

}  // namespace

Status read_decoder_shape(const ConfigReader& keys, ModelConfig* c) {
  CHECK_ASSIGN(int n_experts, keys.integer("expert_count", 0, kMaxWidth, 0));
  if (n_experts > 0)
    return keys.bad("expert_count", "0 (mixtures of experts are not served)",
                    std::to_string(n_experts));
  CHECK_ASSIGN(c->n_layers, keys.integer("block_count", 1, kMaxLayers));
  CHECK_ASSIGN(c->hidden_dim, keys.integer("embedding_length", 1, kMaxWidth));
  CHECK_ASSIGN(c->context_tokens, keys.integer("context_length", 1, kMaxContext));
  c->layers.resize(static_cast<size_t>(c->n_layers));
  CHECK_OK(read_heads(keys, c));
  CHECK_ASSIGN(auto ffn_dims, keys.per_layer("feed_forward_length", c->n_layers, 1, kMaxWidth));
  for (size_t i = 0; i < ffn_dims.size(); ++i) c->layers[i].ffn_dim = ffn_dims[i];
  CHECK_ASSIGN(double eps, keys.real("attention.layer_norm_rms_epsilon", 1e-12, 1e-1));
  CHECK_ASSIGN(double scale, keys.real("attention.scale", 0, 1e6, 0));
  CHECK_ASSIGN(double attention_softcap, keys.real("attn_logit_softcapping", 0, 1e6, 0));
  CHECK_ASSIGN(double logit_softcap, keys.real("final_logit_softcapping", 0, 1e6, 0));
  c->norm_eps = static_cast<float>(eps);
  c->attention_scale =
      static_cast<float>(scale > 0 ? scale : 1.0 / std::sqrt(c->layers[0].head_dim));
  c->attention_softcap = static_cast<float>(attention_softcap);
  c->logit_softcap = static_cast<float>(logit_softcap);
  return ok_status();
}

Status read_uniform_window(const ConfigReader& keys, ModelConfig* c) {
  CHECK_ASSIGN(int window, keys.integer("attention.sliding_window", 0, kMaxContext, 0));
  if (window >= c->context_tokens) window = 0;
  for (LayerConfig& layer : c->layers) layer.window = window;
  return ok_status();
}

void group_layers(ModelConfig* c) {
  c->kv_groups.clear();
  for (int i = 0; i < c->n_layers; ++i) {
    LayerConfig& layer = c->layers[static_cast<size_t>(i)];
    auto same = [&layer](const KvGroup& g) {
      return g.window == layer.window && g.n_kv_heads == layer.n_kv_heads &&
             g.head_dim == layer.head_dim;
    };
    auto group = std::find_if(c->kv_groups.begin(), c->kv_groups.end(), same);
    if (group == c->kv_groups.end())
      group =
          c->kv_groups.insert(group, KvGroup{layer.window, layer.n_kv_heads, layer.head_dim, {}});
    group->layers.push_back(i);
    layer.kv_group = static_cast<int>(group - c->kv_groups.begin());
  }
}

}  // namespace tandem
