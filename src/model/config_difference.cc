#include "model/config_difference.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem {
namespace {

struct Comparison {
  std::optional<ConfigDifference> first;

  template <typename T>
  void field(const std::string& what, const T& wanted, const T& found) {
    if (!first && wanted != found) first = {what, fmt::format("{}", wanted), fmt::format("{}", found)};
  }
};

const char* name_of(Activation a) { return a == Activation::kSiluGate ? "silu" : "gelu"; }
const char* name_of(RopeStyle s) { return s == RopeStyle::kInterleaved ? "interleaved" : "neox"; }

void compare_ropes(const RopeParams& a, const RopeParams& b, const std::string& where, Comparison* c) {
  c->field("rotated values a head" + where, a.dim, b.dim);
  c->field("rope style" + where, std::string(name_of(a.style)), std::string(name_of(b.style)));
  c->field("rope base" + where, a.theta, b.theta);
  c->field("rope attention factor" + where, a.attention_factor, b.attention_factor);
  for (size_t i = 0; i < std::min(a.inv_freq.size(), b.inv_freq.size()); ++i)
    c->field(fmt::format("rope frequency {}{}", i, where), a.inv_freq[i], b.inv_freq[i]);
}

void compare_layers(const ModelConfig& model, const ModelConfig& other, size_t i, Comparison* c) {
  const LayerConfig &a = model.layers[i], &b = other.layers[i];
  const std::string where = fmt::format(" of layer {}", i);
  c->field("heads" + where, a.n_heads, b.n_heads);
  c->field("K/V heads" + where, a.n_kv_heads, b.n_kv_heads);
  c->field("head size" + where, a.head_dim, b.head_dim);
  c->field("feed-forward size" + where, a.ffn_dim, b.ffn_dim);
  c->field("attention window" + where, a.window, b.window);
  compare_ropes(model.ropes[static_cast<size_t>(a.rope)], other.ropes[static_cast<size_t>(b.rope)], where, c);
}

}  // namespace

std::optional<ConfigDifference> config_difference(const ModelConfig& model, const ModelConfig& other) {
  Comparison c;
  c.field("architecture", model.architecture, other.architecture);
  c.field("layers", model.n_layers, other.n_layers);
  c.field("hidden size", model.hidden_dim, other.hidden_dim);
  c.field("vocabulary", model.vocab_size, other.vocab_size);
  c.field("norm epsilon", model.norm_eps, other.norm_eps);
  c.field("activation", std::string(name_of(model.activation)), std::string(name_of(other.activation)));
  c.field("embedding scale", model.embedding_scale, other.embedding_scale);
  c.field("attention scale", model.attention_scale, other.attention_scale);
  c.field("attention softcap", model.attention_softcap, other.attention_softcap);
  c.field("logit softcap", model.logit_softcap, other.logit_softcap);
  c.field("biases of q, k and v", model.has_qkv_bias, other.has_qkv_bias);
  c.field("norms of q and k", model.has_qk_norm, other.has_qk_norm);
  c.field("norms behind attention and feed-forward", model.has_post_norms, other.has_post_norms);
  for (size_t i = 0; !c.first && i < model.layers.size(); ++i) compare_layers(model, other, i, &c);
  return c.first;
}

}  // namespace tandem
