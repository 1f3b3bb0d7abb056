// The forward pass: one step of a decoder-only transformer with rotary positions, grouped K/V heads and a
// gated feed-forward, in the variants that ModelConfig describes. Owns the buffers of a step, which grow to
// the largest step seen and then stay. Confined to the engine thread; run() uses the team.
#pragma once

#include <atomic>
#include <initializer_list>
#include <span>
#include <vector>

#include "base/status.h"
#include "cpu/arena.h"
#include "cpu/input_squares.h"
#include "cpu/kv_pools.h"
#include "cpu/omp_team.h"
#include "cpu/packed_model.h"
#include "cpu/step_plan.h"
#include "model/step_check.h"

namespace tandem {

class CpuForward {
 public:
  // All references outlive this. float_activations: matmuls read float32 instead of int8 activations. Without
  // it, too, they do where all products of a phase have F32, F16 or BF16 weights (matmul_dense). `lean`: what steps of
  // the lean set read, all of it; null: the first plane of those matrices of `model` that are nested. squares: each run of
  // the full set adds what its products read; of config's widths; null: nothing is summed.
  CpuForward(const ModelConfig& config, const PackedModel& model, const KernelTable& kernels,
             KvPools* kv, OmpTeam* team, bool float_activations, const PackedModel* lean = nullptr, InputSquares* squares = nullptr);

  // Checks the batch against vocabulary and pools, then stores K/V of all tokens and the logits of
  // logit_rows. kInvalidArgument: nothing was computed. kExhausted: no memory for a step of this size.
  Status run(const StepBatch& batch);
  std::span<const float> logits(int i) const;  // of logit_rows[i]; valid until the next run
  // Where `model` has no output: what the last layer made of each token, [M][hidden_dim]; valid until the next run.
  std::span<const float> hidden() const;
  // Of this object after any steps of up to n_tokens tokens and n_logit_rows rows, each token behind fewer than
  // context_tokens. Reads no weight: `model` may be empty.
  int64_t most_scratch_bytes(int n_tokens, int n_logit_rows, int context_tokens) const;

 private:
  // One of the products that a phase computes from the same activations: out = act * weight^T.
  struct Product {
    const PackedMatrix* weight;
    float* out;
    int64_t out_stride;
  };

  // What the products of a phase read; a property of the weights alone.
  enum class Acts { kQuantized, kFloat };
  struct Input {
    Acts acts = Acts::kQuantized;
    ColumnSquares* squares = nullptr;  // where its squares are added; or null
  };
  struct LayerInputs {
    Input qkv, o, gate_up, down;
  };

  // Rows of activations and the tokens they belong to.
  struct Rows {
    const int* tokens;  // [count]; nullptr: row r is token r
    int64_t count;
    int64_t token(int64_t r) const { return tokens ? tokens[r] : r; }
  };

  // A set of weights and how its products are computed. Buffers are of the model's shape and serve all sets.
  struct Set {
    const PackedModel* packed;
    std::vector<LayerInputs> inputs;
    Input output_input;
  };

  bool ends_with_logits() const { return set_->packed->output.data != nullptr; }
  Set set_of(const PackedModel& packed, InputSquares* squares) const;
  Status reserve(int n_tokens, int n_logit_rows);
  Status reserve_records();
  size_t place_step(uint8_t* base, int64_t n_tokens);
  size_t scratch_of_a_thread() const;
  void compute(TeamMember& t);
  void embed(TeamMember& t);
  void compute_rotations(int64_t token);
  Acts acts_of(std::initializer_list<const PackedMatrix*> weights) const;
  int64_t act_stride(Acts acts, int64_t n_cols) const;
  void store_activations(int64_t row, const float* x, int64_t n_cols, const Input& input);
  void norm_to_activations(const TeamMember& t, int64_t row, const float* x,
                           const std::vector<float>& weight, const Input& input);
  void multiply(TeamMember& t, int64_t n_rows, const Input& input, std::initializer_list<Product> products);
  void add_squares(TeamMember& t, int64_t n_rows, ColumnSquares* squares);
  PackedMatrix weight_of(const Product& p) const;
  void multiply_rows(TeamMember& t, int64_t row_begin, int64_t row_end, Acts acts, std::span<const Product> products);
  void multiply_by_library(TeamMember& t, int64_t n_rows, std::span<const Product> products);
  void rotate_and_store_kv(TeamMember& t, int layer);
  void attend(TeamMember& t, int layer);
  void store_attention(TeamMember& t, const Rows& rows, int layer);
  void join_attention(const TeamMember& t, int64_t token, int layer);
  const float* add_branch(const Rows& rows, int64_t row, const std::vector<float>& bias,
                          const std::vector<float>& post_norm);
  void add_and_norm(TeamMember& t, const Rows& rows, const std::vector<float>& bias,
                    const std::vector<float>& post_norm, const std::vector<float>& next_norm, const Input& next);
  void activate(TeamMember& t, const Rows& rows, int64_t ffn_dim, const Input& input);
  void cap_logits(TeamMember& t);
  uint8_t* thread_scratch(const TeamMember& t) const;

  const ModelConfig& config_;
  const KernelTable& kernels_;
  KvPools* kv_;
  OmpTeam* team_;
  const bool float_activations_;
  InputSquares* const squares_;
  CpuStepPlan plan_;
  std::vector<Set> sets_;     // the full one, and the lean one where that is not within it
  const Set* set_ = nullptr;  // of the step
  const StepLimits limits_;

  // Widths of one row, the largest over all layers.
  int64_t q_dim_ = 0, kv_dim_ = 0, ffn_dim_ = 0, widest_ = 0;
  size_t act_bytes_ = 0;    // a row of act_ of the widest product
  int64_t rope_stride_ = 0; // floats of one position in cos_sin_, all ropes together
  std::vector<int64_t> rope_offsets_;

  int max_tokens_ = 0, max_logit_rows_ = 0;
  Arena step_memory_, logit_memory_, thread_memory_, record_memory_;
  int64_t max_record_floats_ = 0;
  size_t thread_bytes_ = 0;
  std::atomic<bool> has_library_failed_{false};
  // Of M tokens, M <= max_tokens_.
  float* x_ = nullptr;        // [M][hidden_dim] the residual stream
  uint8_t* act_ = nullptr;    // [M][row of n_cols] what the next product reads; packed for its n_cols
  float* float_act_ = nullptr;  // [M][n_cols] the same as floats, where squares are summed
  float* q_ = nullptr;        // [M][q_dim_]
  float* k_ = nullptr;        // [M][kv_dim_]
  float* v_ = nullptr;        // [M][kv_dim_]
  float* attn_ = nullptr;     // [M][q_dim_]
  float* branch_ = nullptr;   // [M][hidden_dim] what attention or ffn adds to the residual
  float* gate_ = nullptr;     // [M][ffn_dim_]
  float* up_ = nullptr;       // [M][ffn_dim_]
  float* cos_sin_ = nullptr;  // [M][rope_stride_]
  float* logits_ = nullptr;   // [R][vocab_size]
};

}  // namespace tandem
