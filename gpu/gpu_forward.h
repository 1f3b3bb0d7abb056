// The forward pass on the device: what a step launches, in order, and the buffers it works in, which are there from
// warm-up on. Reads as the paper: enqueue() at the end of gpu_forward.cc is the model. Confined to the engine thread.
#pragma once

#include <bit>
#include <initializer_list>
#include <vector>

#include "gpu/device_weights.h"
#include "gpu/kv_pages.h"
#include "kernels/matvec.cuh"
#include "kernels/paged_attention.cuh"
#include "model/model_config.h"
#include "model/step_batch.h"

namespace tandem {

// Of one launch of the model: everything that a graph bakes in.
struct StepShape {
  int n_rows = 0;         // tokens
  int n_logit_rows = 0;   // = n_rows in a decode step
  int max_parts = 1;      // of the longest row (paged_attention.cuh)
  bool is_decode = false; // row m has page table m to itself, and its logits are row m
  WeightSet weights = WeightSet::kFull;
  bool operator==(const StepShape&) const = default;
};

// What a step reads: device memory, [max_rows] each.
struct StepInputs {
  int32_t* tokens = nullptr;
  int32_t* positions = nullptr;   // -1: padding
  int32_t* table_of = nullptr;
  int32_t* logit_rows = nullptr;
  uint8_t* hidden = nullptr;      // [max_rows][hidden_dim] floats as tiles (tile_layout.h), of which tokens are the rows; or null
};

class GpuForward {
 public:
  // All references outlive this.
  GpuForward(const ModelConfig& config, const DeviceWeights& weights, const KvPages& kv, bool float_activations);
  // Sizes of everything: at most so many rows, logit rows and tables a launch, of so many tokens.
  // takes_hidden: the first layer reads inputs().hidden instead of embeddings.
  void plan(int max_rows, int max_logit_rows, int context_tokens, bool takes_hidden);
  int64_t workspace_bytes() const { return static_cast<int64_t>(pool_.n_bytes()); }
  Status allocate(cudaStream_t stream);

  // Which of the two equal-bit paths quantized products of up to so many rows (a power of two) take with either set; by
  // measurement.
  void set_path(WeightSet set, int n_rows, DotPath path) { paths_[static_cast<size_t>(set)][path_index(n_rows)] = path; }
  Status enqueue(const StepShape& shape, cudaStream_t stream);
  int n_launches() const { return n_launches_; }  // of the last enqueue()

  const StepInputs& inputs() const { return inputs_; }
  int32_t* page_tables(int group) const { return tables_[static_cast<size_t>(group)]; }  // [max_rows][table_stride]
  int table_stride() const { return table_stride_; }
  int max_rows() const { return max_rows_; }
  int max_logit_rows() const { return max_logit_rows_; }
  float* logits() const { return logits_; }  // [max_logit_rows][vocab_size]

 private:
  // Which forms of the activations a product's weights ask for.
  struct Acts {
    bool blocks = false, floats = false;
  };
  struct LayerActs {
    Acts qkv, o, gate_up, down;
  };
  struct ActBuffers {
    size_t blocks = 0, floats = 0, sums = 0;  // offsets
  };
  Acts acts_of(std::initializer_list<const PackedMatrix*> weights) const;
  bool reads_floats(const PackedMatrix& w) const;
  DeviceActs acts(const ActBuffers& buffers, int64_t n_cols, Acts kinds, bool has_sums) const;
  ActBuffers add_acts(int64_t n_cols, bool has_sums);
  Status store(MatvecParams p, std::initializer_list<MatvecProduct> products, cudaStream_t stream);
  Status attention(int layer, const StepShape& shape, const DeviceActs& out, cudaStream_t stream);
  Status branch_end(MatvecParams p, const PackedMatrix& w, const float* bias, const float* post_norm, const float* next_norm,
                    const DeviceActs& next, cudaStream_t stream);

  const ModelConfig& config_;
  const DeviceWeights& weights_;
  const KvPages& kv_;
  const bool float_activations_;
  static size_t path_index(int n_rows) { return static_cast<size_t>(std::bit_width(static_cast<unsigned>(n_rows - 1))); }
  DotPath paths_[2][16] = {};             // by set and power of two
  WeightSet set_ = WeightSet::kFull;      // of this enqueue()
  std::vector<LayerActs> layer_acts_;
  Acts output_acts_;
  int64_t q_dim_ = 0, kv_dim_ = 0, ffn_dim_ = 0;  // widest of all layers
  int n_pairs_ = 0;
  std::vector<int> pair_offsets_;  // per rope

  int max_rows_ = 0, max_logit_rows_ = 0, table_stride_ = 0, max_parts_ = 1;
  DevicePool pool_;
  bool takes_hidden_ = false;
  size_t inputs_at_ = 0, hidden_at_ = 0, x_at_ = 0, q_at_ = 0, k_at_ = 0, v_at_ = 0, branch_at_ = 0, gate_at_ = 0, up_at_ = 0;
  size_t cos_sin_at_ = 0, records_at_ = 0, arrivals_at_ = 0, logits_at_ = 0;
  size_t arrivals_bytes_ = 0;
  std::vector<size_t> tables_at_;
  ActBuffers hidden_, attn_, ffn_;
  StepInputs inputs_;
  std::vector<int32_t*> tables_;
  float* logits_ = nullptr;
  int n_launches_ = 0;
};

}  // namespace tandem
