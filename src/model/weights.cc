#include "model/weights.h"

#include <fmt/format.h>

#include <string_view>
#include <unordered_set>

#include "model/float_tensor.h"

namespace tandem {
namespace {

class WeightLoader {
 public:
  WeightLoader(const GgufModel& file, const ModelConfig& config) : file_(file), config_(config) {}

  Result<ModelWeights> load() {
    ModelWeights w;
    CHECK_ASSIGN(w.token_embedding,
                 matrix("token_embd.weight", config_.vocab_size, config_.hidden_dim));
    w.output = w.token_embedding;
    if (!config_.tied_embeddings) {
      CHECK_ASSIGN(w.output, matrix("output.weight", config_.vocab_size, config_.hidden_dim));
    }
    CHECK_ASSIGN(w.output_norm, floats("output_norm.weight", config_.hidden_dim));
    for (int i = 0; i < config_.n_layers; ++i) {
      prefix_ = fmt::format("blk.{}.", i);
      w.layers.emplace_back();
      const LayerConfig& layer = config_.layers[static_cast<size_t>(i)];
      CHECK_OK(load_attention(layer, &w.layers.back()));
      CHECK_OK(load_ffn(layer, &w.layers.back()));
    }
    CHECK_OK(check_all_used());
    return w;
  }

 private:
  Status load_attention(const LayerConfig& layer, LayerWeights* w) {
    int64_t hidden = config_.hidden_dim, head_dim = layer.head_dim;
    int64_t q_rows = layer.n_heads * head_dim, kv_rows = layer.n_kv_heads * head_dim;
    CHECK_ASSIGN(w->attn_norm, floats(prefix_ + "attn_norm.weight", hidden));
    if (has("attn_qkv.weight")) {  // rows of q, then k, then v
      CHECK_ASSIGN(WeightView qkv,
                   matrix(prefix_ + "attn_qkv.weight", q_rows + 2 * kv_rows, hidden));
      w->wq = rows(qkv, 0, q_rows);
      w->wk = rows(qkv, q_rows, kv_rows);
      w->wv = rows(qkv, q_rows + kv_rows, kv_rows);
    } else {
      CHECK_ASSIGN(w->wq, matrix(prefix_ + "attn_q.weight", q_rows, hidden));
      CHECK_ASSIGN(w->wk, matrix(prefix_ + "attn_k.weight", kv_rows, hidden));
      CHECK_ASSIGN(w->wv, matrix(prefix_ + "attn_v.weight", kv_rows, hidden));
    }
    CHECK_ASSIGN(w->wo, matrix(prefix_ + "attn_output.weight", hidden, q_rows));
    if (config_.has_qkv_bias) {
      CHECK_ASSIGN(w->bq, floats(prefix_ + "attn_q.bias", q_rows));
      CHECK_ASSIGN(w->bk, floats(prefix_ + "attn_k.bias", kv_rows));
      CHECK_ASSIGN(w->bv, floats(prefix_ + "attn_v.bias", kv_rows));
    }
    if (has("attn_output.bias")) {
      CHECK_ASSIGN(w->bo, floats(prefix_ + "attn_output.bias", hidden));
    }
    if (config_.has_qk_norm) {
      CHECK_ASSIGN(w->q_norm, floats(prefix_ + "attn_q_norm.weight", head_dim));
      CHECK_ASSIGN(w->k_norm, floats(prefix_ + "attn_k_norm.weight", head_dim));
    }
    if (config_.has_post_norms) {
      CHECK_ASSIGN(w->attn_post_norm, floats(prefix_ + "post_attention_norm.weight", hidden));
    }
    return ok_status();
  }

  Status load_ffn(const LayerConfig& layer, LayerWeights* w) {
    int64_t hidden = config_.hidden_dim, ffn = layer.ffn_dim;
    CHECK_ASSIGN(w->ffn_norm, floats(prefix_ + "ffn_norm.weight", hidden));
    if (has("ffn_gate.weight")) {
      CHECK_ASSIGN(w->w_gate, matrix(prefix_ + "ffn_gate.weight", ffn, hidden));
      CHECK_ASSIGN(w->w_up, matrix(prefix_ + "ffn_up.weight", ffn, hidden));
    } else if (config_.architecture == "phi3") {  // rows of gate, then up
      CHECK_ASSIGN(WeightView gate_up, matrix(prefix_ + "ffn_up.weight", 2 * ffn, hidden));
      w->w_gate = rows(gate_up, 0, ffn);
      w->w_up = rows(gate_up, ffn, ffn);
    } else {
      return matrix(prefix_ + "ffn_gate.weight", ffn, hidden).status();
    }
    CHECK_ASSIGN(w->w_down, matrix(prefix_ + "ffn_down.weight", hidden, ffn));
    if (config_.has_post_norms) {
      CHECK_ASSIGN(w->ffn_post_norm, floats(prefix_ + "post_ffw_norm.weight", hidden));
    }
    return ok_status();
  }

  bool has(const char* suffix) const { return file_.find_tensor(prefix_ + suffix) != nullptr; }

  Result<std::vector<float>> floats(const std::string& name, int64_t n) {
    used_.insert(name);
    return read_float_tensor(file_, name, n);
  }

  Result<WeightView> matrix(const std::string& name, int64_t n_rows, int64_t n_cols) {
    used_.insert(name);
    auto bad = [&](const std::string& what) {
      return invalid_argument(fmt::format("{}: tensor \"{}\"{}", file_.name(), name, what));
    };
    const GgufTensor* t = file_.find_tensor(name);
    if (t == nullptr) return bad(" is missing; architecture " + config_.architecture + " needs it");
    if (t->dims[0] != n_cols || t->dims[1] != n_rows || t->dims[2] * t->dims[3] != 1)
      return bad(fmt::format(": shape must be [{}, {}], found {}", n_cols, n_rows, shape_text(*t)));
    const QuantTraits* traits = quant_traits(static_cast<uint32_t>(t->type));
    if (traits == nullptr || traits->dequantize_row == nullptr)
      return bad(fmt::format(": type {} does not hold weights", traits ? traits->name : "?"));
    return WeightView{t->type, n_rows, n_cols, t->data};
  }

  static WeightView rows(const WeightView& w, int64_t first, int64_t n) {
    return WeightView{w.type, n, w.n_cols, w.data + first * row_bytes(w)};
  }

  Status check_all_used() const {
    for (const GgufTensor& t : file_.tensors()) {
      if (used_.count(t.name) || t.name.rfind("rope_", 0) == 0)
        continue;  // rope_*: read with the configuration
      if (t.name.find(".attn_rot_embd") != std::string::npos)
        continue;  // old files: plain rope, written out
      return unimplemented(
          fmt::format("{}: tensor \"{}\" is not known to architecture {}; without it the output"
                      " would be wrong",
                      file_.name(), t.name, config_.architecture));
    }
    return ok_status();
  }

  const GgufModel& file_;
  const ModelConfig& config_;
  std::string prefix_;  // "blk.3."
  std::unordered_set<std::string> used_;
};

}  // namespace

int64_t row_bytes(const WeightView& w) {
  const QuantTraits* traits = quant_traits(static_cast<uint32_t>(w.type));
  return w.n_cols / traits->block_size * traits->block_bytes;
}

bool is_mostly_q8_0(const ModelWeights& weights) {
  int64_t n_all = 0, n_q8_0 = 0;
  const auto add = [&](const WeightView& w) {
    const int64_t n = w.n_rows * row_bytes(w);
    n_all += n;
    if (w.type == GgmlType::kQ8_0) n_q8_0 += n;
  };
  add(weights.token_embedding);
  if (weights.output.data != weights.token_embedding.data) add(weights.output);
  for (const LayerWeights& l : weights.layers) {
    for (const WeightView* w : {&l.wq, &l.wk, &l.wv, &l.wo, &l.w_gate, &l.w_up, &l.w_down}) add(*w);
  }
  return 2 * n_q8_0 > n_all;
}

Result<ModelWeights> load_weights(const GgufModel& file, const ModelConfig& config) {
  return WeightLoader(file, config).load();
}

}  // namespace tandem
