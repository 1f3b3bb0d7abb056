#include "gpu/device_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "kernels/matvec.cuh"
#include "kernels/tile_layout.h"
#include "model/weight_check.h"

namespace tandem {
namespace {

constexpr size_t kSlabBytes = 16 << 20;  // packed at once, twice: one is packed while the other is on its way

bool is_served(GgmlType type) { return matvec_serves(type, DotPath::kDp4a) || matvec_serves(type, DotPath::kFloat); }

}  // namespace

Status DeviceWeights::add_matrix(const std::string& name, const WeightView& from, PackedMatrix* to) {
  const GgmlType type = is_nested_ && from.type == GgmlType::kQ8_0 ? GgmlType::kQ8_0Nested : from.type;
  const size_t n_bytes = is_served(type) ? tiled::packed_bytes(type, from.n_rows, from.n_cols) : 0;
  if (n_bytes == 0 || from.n_cols % QK != 0) {
    const QuantTraits* traits = quant_traits(static_cast<uint32_t>(from.type));
    return unimplemented(fmt::format("{}: tensor type {} [{} x {}] is not served by the device's kernels; requantize the model",
                                     name, traits != nullptr ? traits->name : "unknown", from.n_rows, from.n_cols));
  }
  *to = {type, from.n_rows, from.n_cols, nullptr};
  matrices_.push_back({&from, to, pool_.add(n_bytes), n_bytes});
  weight_bytes_.full += static_cast<int64_t>(n_bytes);
  weight_bytes_.lean += static_cast<int64_t>(tiled::packed_bytes(lean_form(*to).type, from.n_rows, from.n_cols));
  return ok_status();
}

void DeviceWeights::add_vector(const std::vector<float>& from, const float** to) {
  if (!from.empty()) vectors_.push_back({&from, to, pool_.add(from.size() * sizeof(float))});
}

Status DeviceWeights::plan(const ModelConfig& config, const ModelWeights& weights, bool has_lean_set) {
  is_nested_ = has_lean_set;
  layers.resize(weights.layers.size());
  if (weights.token_embedding) CHECK_OK(add_matrix("token_embedding", weights.token_embedding, &token_embedding));
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    DeviceLayer& to = layers[i];
    const auto name = [&](const char* role) { return fmt::format("layer {} {}", i, role); };
    CHECK_OK(add_matrix(name("wq"), from.wq, &to.wq));
    CHECK_OK(add_matrix(name("wk"), from.wk, &to.wk));
    CHECK_OK(add_matrix(name("wv"), from.wv, &to.wv));
    CHECK_OK(add_matrix(name("wo"), from.wo, &to.wo));
    CHECK_OK(add_matrix(name("w_gate"), from.w_gate, &to.w_gate));
    CHECK_OK(add_matrix(name("w_up"), from.w_up, &to.w_up));
    CHECK_OK(add_matrix(name("w_down"), from.w_down, &to.w_down));
    add_vector(from.attn_norm, &to.attn_norm), add_vector(from.ffn_norm, &to.ffn_norm);
    add_vector(from.attn_post_norm, &to.attn_post_norm), add_vector(from.ffn_post_norm, &to.ffn_post_norm);
    add_vector(from.q_norm, &to.q_norm), add_vector(from.k_norm, &to.k_norm);
    add_vector(from.bq, &to.bq), add_vector(from.bk, &to.bk), add_vector(from.bv, &to.bv), add_vector(from.bo, &to.bo);
  }
  is_tied_ = weights.output.data == weights.token_embedding.data;
  if (!is_tied_) CHECK_OK(add_matrix("output", weights.output, &output));
  add_vector(weights.output_norm, &output_norm);
  for (const RopeParams& rope : config.ropes) {
    inv_freq_.insert(inv_freq_.end(), rope.inv_freq.begin(), rope.inv_freq.end());
    rope_factor_.insert(rope_factor_.end(), rope.inv_freq.size(), rope.attention_factor);
  }
  add_vector(inv_freq_, &inv_freq), add_vector(rope_factor_, &rope_factor);
  if (weight_bytes_.lean == weight_bytes_.full) weight_bytes_.lean = 0;  // none is nested
  return ok_status();
}

Status DeviceWeights::upload(const ModelWeights& weights, int n_threads, const std::function<void(float)>& on_progress) {
  (void)weights;  // the views of plan() point into it
  CHECK_OK(pool_.allocate());
  CudaStream stream;
  CUDA_OK(cudaStreamCreateWithFlags(stream.put(), cudaStreamNonBlocking));
  PinnedPool staging;
  CudaEvent sent[2];
  size_t slab_offsets[2];
  // At least what one of many tiles takes.
  const auto tile_size = [](const PackedMatrix& w) { return tiled::packed_bytes(w.type, kTileRows, w.n_cols); };
  size_t widest = kSlabBytes;  // a tile at least
  for (const Matrix& m : matrices_) widest = std::max(widest, tile_size(*m.to));
  for (const Vector& v : vectors_) widest = std::max(widest, v.from->size() * sizeof(float));
  for (int i = 0; i < 2; ++i) {
    slab_offsets[i] = staging.add(widest);
    CUDA_OK(cudaEventCreateWithFlags(sent[i].put(), cudaEventDisableTiming));
  }
  CHECK_OK(staging.allocate());

  int slot = 0;
  const auto send = [&](size_t offset, const uint8_t* from, size_t n_bytes) -> Status {
    CUDA_OK(cudaMemcpyAsync(pool_.at(offset), from, n_bytes, cudaMemcpyHostToDevice, stream.get()));
    return ok_status();
  };
  const auto next_slot = [&]() -> Status {
    CUDA_OK(cudaEventRecord(sent[slot].get(), stream.get()));
    slot ^= 1;
    CUDA_OK(cudaEventSynchronize(sent[slot].get()));  // before it is packed into again
    return ok_status();
  };
  size_t n_done = 0;
  for (const Matrix& m : matrices_) {
    m.to->data = pool_.at(m.offset);
    const WeightView& w = *m.from;
    const TileShape& shape = *tile_shape(m.to->type);
    const int64_t n_tiles = (w.n_rows + kTileRows - 1) / kTileRows;
    const int64_t at_once = std::max<int64_t>(1, static_cast<int64_t>(kSlabBytes / tile_size(*m.to)));
    for (int64_t first = 0; first < n_tiles; first += at_once) {
      const int64_t count = std::min(at_once, n_tiles - first), first_row = first * kTileRows;
      const int64_t n_rows = std::min(w.n_rows - first_row, count * kTileRows);
      // A matrix of these tiles alone, of which each plane goes to its place in the whole one.
      uint8_t* staged = staging.at(slab_offsets[slot]);
      const PackedMatrix slab = {m.to->type, n_rows, w.n_cols, staged};
      std::atomic<int64_t> next{0};
      std::atomic<bool> is_finite{true};
      const auto pack = [&] {
        constexpr int64_t kTilesAtOnce = 8;
        for (int64_t begin; (begin = next.fetch_add(kTilesAtOnce)) < count;) {
          const int64_t end = std::min(begin + kTilesAtOnce, count);
          if (!check_finite_rows(w, first_row + begin * kTileRows, first_row + std::min(n_rows, end * kTileRows)).ok()) is_finite = false;
          tiled::pack_tiles(slab.type, w.data + first_row * row_bytes(w), n_rows, w.n_cols, begin, end, staged);
        }
      };
      std::vector<std::thread> threads;
      for (int t = 1; t < n_threads; ++t) threads.emplace_back(pack);
      pack();
      for (std::thread& t : threads) t.join();
      if (!is_finite) return data_loss(check_finite_rows(w, 0, w.n_rows).message());
      const TilePlanes from = tile_planes(shape, slab, 0), to = tile_planes(shape, *m.to, first);
      const auto send_plane = [&](const uint8_t* plane, const uint8_t* staged_plane, size_t bytes_per_tile) {
        return plane == nullptr ? ok_status()
                                : send(m.offset + static_cast<size_t>(plane - m.to->data), staged_plane, static_cast<size_t>(count) * bytes_per_tile);
      };
      CHECK_OK(send_plane(to.first, from.first, tile_bytes(shape, w.n_cols)));
      CHECK_OK(send_plane(to.raised, from.raised, raised_tile_bytes(shape, w.n_cols)));
      CHECK_OK(send_plane(to.residual, from.residual, residual_bytes(shape, w.n_cols)));
      CHECK_OK(next_slot());
    }
    n_done += m.n_bytes;
    if (on_progress) on_progress(static_cast<float>(n_done) / static_cast<float>(pool_.n_bytes()));
  }
  for (const Vector& v : vectors_) {
    std::copy(v.from->begin(), v.from->end(), staging.at<float>(slab_offsets[slot]));
    *v.to = pool_.at<float>(v.offset);
    CHECK_OK(send(v.offset, staging.at(slab_offsets[slot]), v.from->size() * sizeof(float)));
    CHECK_OK(next_slot());
  }
  if (is_tied_) output = token_embedding;
  CUDA_OK(cudaStreamSynchronize(stream.get()));
  matrices_.clear(), vectors_.clear();
  return ok_status();
}

}  // namespace tandem
