// The weights in device memory, in the tiled form that both the processor's and the device's kernels read.
// Immutable after upload().
#pragma once

#include <functional>
#include <vector>

#include "gpu/device_buffer.h"
#include "kernels/kernel_table.h"
#include "model/backend.h"
#include "model/weights.h"

namespace tandem {

struct DeviceLayer {
  const float *attn_norm = nullptr, *ffn_norm = nullptr;            // [hidden_dim]
  const float *attn_post_norm = nullptr, *ffn_post_norm = nullptr;  // or null
  const float *q_norm = nullptr, *k_norm = nullptr;                 // [head_dim] or null
  const float *bq = nullptr, *bk = nullptr, *bv = nullptr, *bo = nullptr;
  PackedMatrix wq, wk, wv, wo, w_gate, w_up, w_down;
};

class DeviceWeights {
 public:
  // Lays everything out. kUnimplemented names a tensor whose type the kernels do not serve. has_lean_set: Q8_0 matrices are
  // nested (tile_layout.h).
  Status plan(const ModelConfig& config, const ModelWeights& weights, bool has_lean_set);
  int64_t n_bytes() const { return static_cast<int64_t>(pool_.n_bytes()); }
  // What the matrices of a set take; lean: 0 where none is nested.
  WeightBytes weight_bytes() const { return weight_bytes_; }
  // Packs on `n_threads` threads of the host and uploads, through pinned memory.
  Status upload(const ModelWeights& weights, int n_threads, const std::function<void(float)>& on_progress);

  PackedMatrix token_embedding, output;
  const float* output_norm = nullptr;
  const float* inv_freq = nullptr;     // [n_pairs] of all ropes, one after another
  const float* rope_factor = nullptr;  // [n_pairs]
  std::vector<DeviceLayer> layers;

 private:
  struct Matrix {
    const WeightView* from;
    PackedMatrix* to;
    size_t offset, n_bytes;
  };
  struct Vector {
    const std::vector<float>* from;
    const float** to;
    size_t offset;
  };
  Status add_matrix(const std::string& name, const WeightView& from, PackedMatrix* to);
  void add_vector(const std::vector<float>& from, const float** to);

  DevicePool pool_;
  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  std::vector<float> inv_freq_, rope_factor_;
  WeightBytes weight_bytes_;
  bool is_tied_ = false, is_nested_ = false;
};

}  // namespace tandem
