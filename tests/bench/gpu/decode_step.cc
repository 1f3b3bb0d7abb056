#include "tests/bench/gpu/decode_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "kernels/device_rows.cuh"
#include "kernels/kv_layout.h"
#include "kernels/random_blocks.h"
#include "kernels/tile_layout.h"

namespace tandem::bench {
namespace {

template <typename T>
Buffer upload(const std::vector<T>& values) {
  Buffer b(values.size() * sizeof(T));
  check(cudaMemcpy(b.get<T>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  return b;
}

Buffer floats(int64_t n) { return Buffer(static_cast<size_t>(n) * sizeof(float)); }

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "gpu_bench: {}: {} ({})\n", what, cudaGetErrorString(error), cudaGetErrorName(error));
  std::exit(1);
}

Buffer::Buffer(size_t n_bytes) {
  check(cudaMalloc(&data_, n_bytes), "memory");
  check(cudaMemset(data_, 0, n_bytes), "memory");
}
Buffer::~Buffer() { cudaFree(data_); }
Buffer::Buffer(Buffer&& o) noexcept : data_(std::exchange(o.data_, nullptr)) {}
Buffer& Buffer::operator=(Buffer&& o) noexcept {
  std::swap(data_, o.data_);
  return *this;
}

// Random blocks are made for 64 tiles and repeated: speed does not depend on the values, time to set up does.
Weights::Weights(GgmlType type, int64_t n_rows, int64_t n_cols, uint32_t seed)
    : n_bytes_(tiled::packed_bytes(type, n_rows, n_cols)), bytes_(n_bytes_), matrix_{type, n_rows, n_cols, bytes_.get<uint8_t>()} {
  const QuantTraits& t = *quant_traits(static_cast<uint32_t>(type));
  const int64_t n_tiles = (n_rows + kTileRows - 1) / kTileRows, made = std::min<int64_t>(n_tiles, 64), rows = made * kTileRows;
  std::vector<uint8_t> file(static_cast<size_t>(rows * n_cols / t.block_size * t.block_bytes));
  fill_random_blocks(t, rows * n_cols / t.block_size, seed, file.data());
  std::vector<uint8_t> packed(tiled::packed_bytes(type, rows, n_cols));
  tiled::pack_tiles(type, file.data(), rows, n_cols, 0, made, packed.data());
  for (size_t at = 0; at < n_bytes_; at += packed.size()) {
    check(cudaMemcpy(bytes_.get<uint8_t>() + at, packed.data(), std::min(packed.size(), n_bytes_ - at), cudaMemcpyHostToDevice), "weights");
  }
}

ActBuffers::ActBuffers(int64_t M, int64_t n_cols)
    : n_cols_(n_cols), blocks_(device_acts_block_bytes(M, n_cols)), floats_(device_acts_float_bytes(M, n_cols)),
      sums_(device_acts_sum_bytes(M, n_cols)) {}

DeviceActs ActBuffers::acts() const { return {n_cols_, blocks_.get<uint8_t>(), floats_.get<float>(), sums_.get<float>()}; }

DecodeStep::DecodeStep(const Shape& s, int batch, int context, cudaStream_t stream)
    : shape_(s), batch_(batch), context_(context), stream_(stream), path_(batch > 4 ? DotPath::kMma : DotPath::kDp4a),
      hidden_(batch, s.hidden), attention_(batch, int64_t{s.n_heads} * s.head_dim), ffn_(batch, s.ffn) {
  const int64_t q = int64_t{s.n_heads} * s.head_dim, kv = int64_t{s.n_kv_heads} * s.head_dim;
  layout_ = {KvType::kF16, 16, s.n_kv_heads, s.head_dim, 0, 0};
  const size_t layer_bytes = kernel_table_ref().kv_layer_bytes(layout_);
  layout_.page_bytes = layer_bytes * static_cast<size_t>(s.n_layers);
  for (int i = 0; i < s.n_layers; ++i) {
    const auto seed = static_cast<uint32_t>(10 * i);
    layers_.push_back({Weights(s.layers, q, s.hidden, seed + 1), Weights(s.layers, kv, s.hidden, seed + 2),
                       Weights(s.layers, kv, s.hidden, seed + 3), Weights(s.layers, s.hidden, q, seed + 4),
                       Weights(s.layers, s.ffn, s.hidden, seed + 5), Weights(s.layers, s.ffn, s.hidden, seed + 6),
                       Weights(s.layers, s.hidden, s.ffn, seed + 7)});
  }
  output_ = std::make_unique<Weights>(s.output, s.vocab, s.hidden, 9);
  const int64_t pages = context / layout_.page_size + 1;
  std::vector<int32_t> tables(static_cast<size_t>(batch * pages));
  for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>(i);
  tables_ = upload(tables);
  positions_ = upload(std::vector<int32_t>(static_cast<size_t>(batch), context - 1));
  tokens_ = upload(std::vector<int32_t>(static_cast<size_t>(batch), 1));
  pool_ = Buffer(layout_.page_bytes * tables.size());
  const auto n_pairs = static_cast<size_t>(s.head_dim / 2);
  inv_freq_ = upload(std::vector<float>(n_pairs, 0.01f));
  factor_ = upload(std::vector<float>(n_pairs, 1.0f));
  cos_sin_ = floats(batch * s.head_dim);
  norm_ = upload(std::vector<float>(static_cast<size_t>(s.hidden), 1.0f));
  x_ = floats(batch * s.hidden);
  q_ = floats(batch * q);
  k_ = floats(batch * kv);
  v_ = floats(batch * kv);
  logits_ = floats(batch * s.vocab);
  adjusted_ = floats(batch * s.vocab);
  counts_ = floats(batch * s.vocab);
  sample_rows_ = upload(std::vector<DeviceSampleRow>(static_cast<size_t>(batch)));
  results_ = Buffer(static_cast<size_t>(batch) * sizeof(DeviceSampleResult));
  PagedAttentionParams p;
  p.layout = layout_;
  p.n_rows = batch;
  p.n_heads = s.n_heads;
  p.max_parts = context / kAttentionPartKeys + 1;
  records_ = Buffer(attention_record_bytes(p));
  arrivals_ = Buffer(attention_arrival_bytes(p));

  cudaGraph_t graph;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  launch_all();
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&graph_, graph, 0), "graph");
  check(cudaGraphDestroy(graph), "graph");
}

DecodeStep::~DecodeStep() {
  cudaStreamSynchronize(stream_);
  if (graph_) cudaGraphExecDestroy(graph_);
}

void DecodeStep::run() { check(cudaGraphLaunch(graph_, stream_), "step"); }

std::vector<int32_t> DecodeStep::tokens() const {
  std::vector<int32_t> out(static_cast<size_t>(batch_));
  check(cudaStreamSynchronize(stream_), "step");
  check(cudaMemcpy(out.data(), tokens_.get<int32_t>(), out.size() * sizeof(int32_t), cudaMemcpyDeviceToHost), "tokens");
  return out;
}

void DecodeStep::launch_all() {
  EmbedParams e;
  e.table = output_->matrix();  // tied, as far as speed goes
  e.tokens = tokens_.get<int32_t>();
  e.n_rows = batch_;
  e.x = x_.get<float>();
  e.next_norm = norm_.get<float>();
  e.next = hidden_.acts();
  check(launch_embed(e, stream_), "embed");
  check(launch_rotations({positions_.get<int32_t>(), batch_, inv_freq_.get<float>(), factor_.get<float>(), shape_.head_dim / 2, cos_sin_.get<float>()}, stream_), "rotations");
  n_launches_ += 2;
  for (size_t i = 0; i < layers_.size(); ++i) launch_layer(layers_[i], i);

  MatvecParams p;
  p.acts = hidden_.acts();
  p.n_rows = batch_;
  p.norm_eps = 1e-5f;
  p.n_products = 1;
  p.products[0] = {output_->matrix(), nullptr, logits_.get<float>(), shape_.vocab};
  check(launch_matvec(p, path_, stream_, &n_launches_), "logits");
  SampleParams s;
  s.logits = logits_.get<float>();
  s.logits_stride = shape_.vocab;
  s.vocab_size = static_cast<int>(shape_.vocab);
  s.n_rows = batch_;
  s.rows = sample_rows_.get<DeviceSampleRow>();
  s.positions = positions_.get<int32_t>();
  s.next_tokens = tokens_.get<int32_t>();
  s.results = results_.get<DeviceSampleResult>();
  s.adjusted = adjusted_.get<float>();
  s.counts = counts_.get<uint32_t>();
  check(launch_sample(s, stream_), "sample");
  ++n_launches_;
}

void DecodeStep::launch_layer(const Layer& w, size_t index) {
  const int64_t q = int64_t{shape_.n_heads} * shape_.head_dim, kv = int64_t{shape_.n_kv_heads} * shape_.head_dim;
  MatvecParams p;
  p.acts = hidden_.acts();
  p.n_rows = batch_;
  p.norm_eps = 1e-5f;
  p.n_products = 3;
  p.products[0] = {w.wq.matrix(), nullptr, q_.get<float>(), q};
  p.products[1] = {w.wk.matrix(), nullptr, k_.get<float>(), kv};
  p.products[2] = {w.wv.matrix(), nullptr, v_.get<float>(), kv};
  check(launch_matvec(p, path_, stream_, &n_launches_), "q, k, v");

  PagedAttentionParams a;
  a.layout = layout_;
  a.layout.layer_offset = layout_.page_bytes / static_cast<size_t>(shape_.n_layers) * index;
  a.pool = pool_.get<uint8_t>();
  a.page_tables = tables_.get<int32_t>();
  a.table_stride = context_ / layout_.page_size + 1;
  a.positions = positions_.get<int32_t>();
  a.n_rows = batch_;
  a.max_parts = context_ / kAttentionPartKeys + 1;
  a.n_heads = shape_.n_heads;
  a.scale = 0.1f;
  a.q = q_.get<float>();
  a.k = k_.get<float>();
  a.v = v_.get<float>();
  a.q_stride = q;
  a.kv_stride = kv;
  a.cos_sin = cos_sin_.get<float>();
  a.cos_sin_stride = shape_.head_dim;
  a.rope_dim = shape_.head_dim;
  a.append = true;
  a.records = records_.get<float>();
  a.arrivals = arrivals_.get<uint32_t>();
  a.out = {q, attention_.acts().blocks, nullptr, nullptr};
  check(launch_paged_attention(a, stream_), "attention");
  ++n_launches_;

  const auto add = [&](const ActBuffers& from, const Weights& weight) {
    MatvecParams r;
    r.acts = from.acts();
    r.acts.sum_squares = nullptr;
    r.n_rows = batch_;
    r.n_products = 1;
    r.products[0].weight = weight.matrix();
    r.end = MatvecEnd::kResidual;
    r.residual = x_.get<float>();
    r.next_norm = norm_.get<float>();
    r.next = hidden_.acts();
    r.next.floats = nullptr;
    check(launch_matvec(r, path_, stream_, &n_launches_), "residual");
  };
  add(attention_, w.wo);
  MatvecParams g;
  g.acts = hidden_.acts();
  g.n_rows = batch_;
  g.norm_eps = 1e-5f;
  g.n_products = 2;
  g.products[0].weight = w.gate.matrix();
  g.products[1].weight = w.up.matrix();
  g.end = MatvecEnd::kGated;
  g.next = {shape_.ffn, ffn_.acts().blocks, nullptr, nullptr};
  check(launch_matvec(g, path_, stream_, &n_launches_), "gate, up");
  add(ffn_, w.down);
}

}  // namespace tandem::bench
