#include "gpu/gpu_forward.h"

#include <algorithm>

#include "kernels/device_rows.cuh"
#include "kernels/tile_layout.h"

namespace tandem {

GpuForward::GpuForward(const ModelConfig& config, const DeviceWeights& weights, const KvPages& kv, bool float_activations)
    : config_(config), weights_(weights), kv_(kv), float_activations_(float_activations) {}

bool GpuForward::reads_floats(const PackedMatrix& w) const {
  return float_activations_ || !matvec_serves(w.type, DotPath::kDp4a);
}

GpuForward::Acts GpuForward::acts_of(std::initializer_list<const PackedMatrix*> weights) const {
  Acts kinds;
  for (const PackedMatrix* w : weights) (reads_floats(*w) ? kinds.floats : kinds.blocks) = true;
  return kinds;
}

GpuForward::ActBuffers GpuForward::add_acts(int64_t n_cols, bool has_sums) {
  ActBuffers b;
  b.blocks = pool_.add(device_acts_block_bytes(max_rows_, n_cols));
  b.floats = pool_.add(device_acts_float_bytes(max_rows_, n_cols));
  if (has_sums) b.sums = pool_.add(device_acts_sum_bytes(max_rows_, n_cols));
  return b;
}

DeviceActs GpuForward::acts(const ActBuffers& b, int64_t n_cols, Acts kinds, bool has_sums) const {
  DeviceActs a;
  a.n_cols = n_cols;
  if (kinds.blocks) a.blocks = pool_.at(b.blocks);
  if (kinds.floats) a.floats = pool_.at<float>(b.floats);
  if (has_sums) a.sum_squares = pool_.at<float>(b.sums);
  return a;
}

void GpuForward::plan(int max_rows, int max_logit_rows, int context_tokens, bool takes_hidden) {
  takes_hidden_ = takes_hidden;
  max_rows_ = max_rows;
  max_logit_rows_ = max_logit_rows;
  max_parts_ = (context_tokens + kAttentionPartKeys - 1) / kAttentionPartKeys + 1;
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    const LayerConfig& l = config_.layers[i];
    const DeviceLayer& w = weights_.layers[i];
    q_dim_ = std::max<int64_t>(q_dim_, int64_t{l.n_heads} * l.head_dim);
    kv_dim_ = std::max<int64_t>(kv_dim_, int64_t{l.n_kv_heads} * l.head_dim);
    ffn_dim_ = std::max<int64_t>(ffn_dim_, l.ffn_dim);
    layer_acts_.push_back({acts_of({&w.wq, &w.wk, &w.wv}), acts_of({&w.wo}), acts_of({&w.w_gate, &w.w_up}), acts_of({&w.w_down})});
  }
  output_acts_ = acts_of({weights_.output.n_rows > 0 ? &weights_.output : &weights_.token_embedding});
  for (const RopeParams& rope : config_.ropes) {
    pair_offsets_.push_back(n_pairs_);
    n_pairs_ += static_cast<int>(rope.inv_freq.size());
  }
  const int page_size = kv_.layout(0).page_size;
  table_stride_ = (context_tokens + page_size - 1) / page_size + 1;

  const size_t M = static_cast<size_t>(max_rows), f = sizeof(float);
  const size_t hidden = static_cast<size_t>(config_.hidden_dim);
  inputs_at_ = pool_.add(4 * M * sizeof(int32_t));
  for (size_t g = 0; g < config_.kv_groups.size(); ++g)
    tables_at_.push_back(pool_.add(M * static_cast<size_t>(table_stride_) * sizeof(int32_t)));
  if (takes_hidden) hidden_at_ = pool_.add(tiled::packed_bytes(GgmlType::kF32, max_rows, config_.hidden_dim));
  x_at_ = pool_.add(M * hidden * f);
  branch_at_ = pool_.add(M * hidden * f);
  q_at_ = pool_.add(M * static_cast<size_t>(q_dim_) * f);
  k_at_ = pool_.add(M * static_cast<size_t>(kv_dim_) * f);
  v_at_ = pool_.add(M * static_cast<size_t>(kv_dim_) * f);
  gate_at_ = pool_.add(M * static_cast<size_t>(ffn_dim_) * f);
  up_at_ = pool_.add(M * static_cast<size_t>(ffn_dim_) * f);
  cos_sin_at_ = pool_.add(M * static_cast<size_t>(n_pairs_) * 2 * f);
  hidden_ = add_acts(config_.hidden_dim, true);
  attn_ = add_acts(q_dim_, false);
  ffn_ = add_acts(ffn_dim_, false);
  size_t record_bytes = 0;
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    PagedAttentionParams p;
    p.layout = kv_.layout(static_cast<int>(i));
    p.n_heads = config_.layers[i].n_heads;
    p.n_rows = max_rows;
    p.max_parts = max_parts_;
    record_bytes = std::max(record_bytes, attention_record_bytes(p));
    arrivals_bytes_ = std::max(arrivals_bytes_, attention_arrival_bytes(p));
  }
  records_at_ = pool_.add(record_bytes);
  arrivals_at_ = pool_.add(arrivals_bytes_);
  logits_at_ = pool_.add(static_cast<size_t>(max_logit_rows) * static_cast<size_t>(config_.vocab_size) * f);
}

Status GpuForward::allocate(cudaStream_t stream) {
  CHECK_OK(pool_.allocate());
  CUDA_OK(cudaMemsetAsync(pool_.at(arrivals_at_), 0, arrivals_bytes_, stream));
  int32_t* in = pool_.at<int32_t>(inputs_at_);
  inputs_ = {in, in + max_rows_, in + 2 * max_rows_, in + 3 * max_rows_, takes_hidden_ ? pool_.at(hidden_at_) : nullptr};
  for (size_t at : tables_at_) tables_.push_back(pool_.at<int32_t>(at));
  logits_ = pool_.at<float>(logits_at_);
  return ok_status();
}

// Products of the same activations, in the step's set: one call for those that read them quantized, one for the others.
Status GpuForward::store(MatvecParams p, std::initializer_list<MatvecProduct> products, cudaStream_t stream) {
  for (const bool floats : {false, true}) {
    p.n_products = 0;
    for (const MatvecProduct& product : products) {
      if (reads_floats(product.weight) != floats) continue;
      MatvecProduct& in_set = p.products[p.n_products++] = product;
      if (set_ == WeightSet::kLean) in_set.weight = lean_form(product.weight);
    }
    const DotPath path = floats ? DotPath::kFloat : paths_[static_cast<size_t>(set_)][path_index(p.n_rows)];
    if (p.n_products > 0) CUDA_OK(launch_matvec(p, path, stream, &n_launches_));
  }
  return ok_status();
}

Status GpuForward::attention(int layer, const StepShape& shape, const DeviceActs& out, cudaStream_t stream) {
  const LayerConfig& l = config_.layers[static_cast<size_t>(layer)];
  const DeviceLayer& w = weights_.layers[static_cast<size_t>(layer)];
  const RopeParams& rope = config_.ropes[static_cast<size_t>(l.rope)];
  PagedAttentionParams p;
  p.layout = kv_.layout(layer);
  p.pool = kv_.pool(l.kv_group);
  p.page_tables = tables_[static_cast<size_t>(l.kv_group)];
  p.table_of = shape.is_decode ? nullptr : inputs_.table_of;
  p.table_stride = table_stride_;
  p.positions = inputs_.positions;
  p.n_rows = shape.n_rows;
  p.max_parts = shape.max_parts;
  p.n_heads = l.n_heads;
  p.window = l.window;
  p.scale = config_.attention_scale;
  p.softcap = config_.attention_softcap;
  p.q = pool_.at<float>(q_at_), p.k = pool_.at<float>(k_at_), p.v = pool_.at<float>(v_at_);
  p.q_stride = int64_t{l.n_heads} * l.head_dim;
  p.kv_stride = int64_t{l.n_kv_heads} * l.head_dim;
  p.q_norm = w.q_norm, p.k_norm = w.k_norm;
  p.norm_eps = config_.norm_eps;
  p.cos_sin = pool_.at<float>(cos_sin_at_) + 2 * pair_offsets_[static_cast<size_t>(l.rope)];
  p.cos_sin_stride = 2 * n_pairs_;
  p.rope_dim = rope.dim;
  p.neox = rope.style == RopeStyle::kNeox;
  p.records = pool_.at<float>(records_at_);
  p.arrivals = pool_.at<uint32_t>(arrivals_at_);
  p.out = out;
  p.append = shape.is_decode && attention_may_append(p);
  if (!p.append) {
    CUDA_OK(launch_kv_append(p, stream));
    ++n_launches_;
  }
  const bool quantizes_later = out.blocks != nullptr && !attention_may_quantize(p);
  if (quantizes_later) {
    p.out.blocks = nullptr;
    p.out.floats = pool_.at<float>(attn_.floats);
  }
  CUDA_OK(launch_paged_attention(p, stream));
  ++n_launches_;
  if (quantizes_later) {
    p.out.blocks = out.blocks;
    CUDA_OK(launch_quantize(p.out, shape.n_rows, stream));
    ++n_launches_;
  }
  return ok_status();
}

// x += act * w^T (with bias, and post-norm where the model has them); `next` is what the next product reads.
Status GpuForward::branch_end(MatvecParams p, const PackedMatrix& w, const float* bias, const float* post_norm,
                              const float* next_norm, const DeviceActs& next, cudaStream_t stream) {
  float* x = pool_.at<float>(x_at_);
  if (post_norm == nullptr) {
    p.end = MatvecEnd::kResidual;
    p.residual = x;
    p.next_norm = next_norm;
    p.next = next;
    return store(p, {{w, bias, nullptr, 0}}, stream);
  }
  float* branch = pool_.at<float>(branch_at_);
  CHECK_OK(store(p, {{w, bias, branch, config_.hidden_dim}}, stream));
  BranchParams b;
  b.branch = branch;
  b.n_rows = p.n_rows;
  b.hidden = config_.hidden_dim;
  b.post_norm = post_norm;
  b.norm_eps = config_.norm_eps;
  b.residual = x;
  b.next_norm = next_norm;
  b.next = next;
  CUDA_OK(launch_add_branch(b, stream));
  ++n_launches_;
  return ok_status();
}

Status GpuForward::enqueue(const StepShape& shape, cudaStream_t stream) {
  n_launches_ = 0;
  set_ = shape.weights;
  const int M = shape.n_rows;
  const int64_t hidden = config_.hidden_dim;
  const GateActivation gate = config_.activation == Activation::kSiluGate ? GateActivation::kSilu : GateActivation::kGeluTanh;
  float *q = pool_.at<float>(q_at_), *k = pool_.at<float>(k_at_), *v = pool_.at<float>(v_at_);

  EmbedParams embed;
  // What the layer before made is a table too, of as many rows as tokens.
  embed.table = takes_hidden_ ? PackedMatrix{GgmlType::kF32, max_rows_, hidden, inputs_.hidden} : weights_.token_embedding;
  embed.tokens = inputs_.tokens;
  embed.n_rows = M;
  embed.scale = takes_hidden_ ? 1.0f : config_.embedding_scale;
  embed.x = pool_.at<float>(x_at_);
  embed.next_norm = weights_.layers[0].attn_norm;
  embed.next = acts(hidden_, hidden, layer_acts_[0].qkv, true);
  CUDA_OK(launch_embed(embed, stream));
  RotationParams rotations;
  rotations.positions = inputs_.positions;
  rotations.n_rows = M;
  rotations.inv_freq = weights_.inv_freq, rotations.factor = weights_.rope_factor;
  rotations.n_pairs = n_pairs_;
  rotations.cos_sin = pool_.at<float>(cos_sin_at_);
  CUDA_OK(launch_rotations(rotations, stream));
  n_launches_ += 2;

  MatvecParams plain;
  plain.n_rows = M;
  plain.norm_eps = config_.norm_eps;
  plain.gate = gate;
  for (int i = 0; i < config_.n_layers; ++i) {
    const LayerConfig& l = config_.layers[static_cast<size_t>(i)];
    const DeviceLayer& w = weights_.layers[static_cast<size_t>(i)];
    const LayerActs& kinds = layer_acts_[static_cast<size_t>(i)];
    const bool is_last = i + 1 == config_.n_layers;
    const float* next_norm = is_last ? weights_.output_norm : weights_.layers[static_cast<size_t>(i) + 1].attn_norm;
    const Acts next_kinds = is_last ? output_acts_ : layer_acts_[static_cast<size_t>(i) + 1].qkv;
    const int64_t q_dim = int64_t{l.n_heads} * l.head_dim, kv_dim = int64_t{l.n_kv_heads} * l.head_dim;
    MatvecParams p = plain;

    // Attention.
    p.acts = acts(hidden_, hidden, kinds.qkv, true);
    CHECK_OK(store(p, {{w.wq, w.bq, q, q_dim}, {w.wk, w.bk, k, kv_dim}, {w.wv, w.bv, v, kv_dim}}, stream));
    const DeviceActs attended = acts(attn_, q_dim, kinds.o, false);
    CHECK_OK(attention(i, shape, attended, stream));
    p.acts = attended;
    CHECK_OK(branch_end(p, w.wo, w.bo, w.attn_post_norm, w.ffn_norm, acts(hidden_, hidden, kinds.gate_up, true), stream));

    // Feed-forward.
    p.acts = acts(hidden_, hidden, kinds.gate_up, true);
    const DeviceActs gated = acts(ffn_, l.ffn_dim, kinds.down, false);
    if (w.w_gate.type == w.w_up.type) {
      p.end = MatvecEnd::kGated;
      p.next = gated;
      CHECK_OK(store(p, {{w.w_gate, nullptr, nullptr, 0}, {w.w_up, nullptr, nullptr, 0}}, stream));
    } else {
      float *g = pool_.at<float>(gate_at_), *u = pool_.at<float>(up_at_);
      CHECK_OK(store(p, {{w.w_gate, nullptr, g, l.ffn_dim}, {w.w_up, nullptr, u, l.ffn_dim}}, stream));
      CUDA_OK(launch_gated(g, u, M, l.ffn_dim, gate, gated, stream));
      ++n_launches_;
    }
    p = plain;
    p.acts = gated;
    CHECK_OK(branch_end(p, w.w_down, nullptr, w.ffn_post_norm, next_norm, acts(hidden_, hidden, next_kinds, true), stream));
  }

  // Logits.
  if (shape.n_logit_rows == 0) return ok_status();
  MatvecParams p = plain;
  p.n_rows = shape.n_logit_rows;
  p.acts = acts(hidden_, hidden, output_acts_, true);
  p.act_rows = shape.is_decode ? nullptr : inputs_.logit_rows;
  p.softcap = config_.logit_softcap;
  return store(p, {{weights_.output, nullptr, logits_, config_.vocab_size}}, stream);
}

}  // namespace tandem
