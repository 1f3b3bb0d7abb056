// A two-layer model as keys and tensor shapes that a test bends one at a time before writing it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gguf/gguf_reader.h"
#include "tests/gguf/gguf_writer.h"

namespace tandem::testing {

struct TinyModel {
  using Put = std::function<void(GgufWriter&, const std::string& key)>;
  std::string arch;
  std::map<std::string, Put> keys;  // full key -> writer
  std::map<std::string, GgufWriter::Tensor> tensors;
  std::string bytes;  // of the last open(); the model views it

  static Put u32(uint32_t v) {
    return [v](GgufWriter& w, const std::string& k) { w.u32(k, v); };
  }
  static Put f32(float v) {
    return [v](GgufWriter& w, const std::string& k) { w.f32(k, v); };
  }
  static Put text(std::string v) {
    return [v](GgufWriter& w, const std::string& k) { w.text(k, v); };
  }
  void set(const std::string& suffix, Put put) { keys[arch + "." + suffix] = std::move(put); }
  void erase(const std::string& suffix) { keys.erase(arch + "." + suffix); }
  // A tensor of F32; value i is first + i * step.
  void tensor(const std::string& name, std::vector<uint64_t> dims, float first = 1,
              float step = 0) {
    uint64_t n = 1;
    for (uint64_t d : dims) n *= d;
    GgufWriter::Tensor t{name, std::move(dims), 0, "", -1, -1};
    for (uint64_t i = 0; i < n; ++i) GgufWriter::put(&t.data, first + static_cast<float>(i) * step);
    tensors[name] = std::move(t);
  }
  std::unique_ptr<GgufModel> open() {
    GgufWriter w;
    for (const auto& [key, put] : keys) put(w, key);
    for (const auto& [name, t] : tensors) w.tensor(t);
    bytes = w.bytes();
    auto model =
        GgufModel::parse(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "m.gguf");
    if (!model.ok()) throw std::runtime_error(model.status().message());
    return std::move(model).value();
  }

  // hidden 16, 4 heads of 4, 2 KV heads, ffn 24, vocabulary 10, 2 layers (or as many as asked).
  explicit TinyModel(std::string architecture, int n_layers = 2) : arch(std::move(architecture)) {
    keys["general.architecture"] = text(arch);
    set("block_count", u32(static_cast<uint32_t>(n_layers)));
    set("embedding_length", u32(16));
    set("context_length", u32(128));
    set("feed_forward_length", u32(24));
    set("attention.head_count", u32(4));
    set("attention.head_count_kv", u32(2));
    set("attention.layer_norm_rms_epsilon", f32(1e-6f));
    if (arch == "gemma3") set("attention.sliding_window", u32(8));
    keys["tokenizer.ggml.tokens"] = [](GgufWriter& w, const std::string& k) {
      w.texts(k, std::vector<std::string>(10, "t"));
    };
    tensor("token_embd.weight", {16, 10});
    tensor("output_norm.weight", {16});
    for (int i = 0; i < n_layers; ++i) add_layer("blk." + std::to_string(i) + ".");
  }

 private:
  void add_layer(const std::string& p) {
    tensor(p + "attn_norm.weight", {16});
    tensor(p + "ffn_norm.weight", {16});
    tensor(p + "attn_output.weight", {16, 16});
    tensor(p + "ffn_down.weight", {24, 16});
    if (arch == "phi3") {
      tensor(p + "attn_qkv.weight", {16, 32}, 0, 1);
      tensor(p + "ffn_up.weight", {16, 48}, 0, 1);
      return;
    }
    tensor(p + "attn_q.weight", {16, 16});
    tensor(p + "attn_k.weight", {16, 8});
    tensor(p + "attn_v.weight", {16, 8});
    tensor(p + "ffn_gate.weight", {16, 24});
    tensor(p + "ffn_up.weight", {16, 24});
    if (arch == "qwen2")
      for (const auto& [name, n] : std::map<std::string, uint64_t>{{"q", 16}, {"k", 8}, {"v", 8}})
        tensor(p + "attn_" + name + ".bias", {n}, 0.5f);
    if (arch == "qwen3" || arch == "gemma3") {
      tensor(p + "attn_q_norm.weight", {4});
      tensor(p + "attn_k_norm.weight", {4});
    }
    if (arch == "gemma3") {
      tensor(p + "post_attention_norm.weight", {16});
      tensor(p + "post_ffw_norm.weight", {16});
    }
  }
};

}  // namespace tandem::testing
