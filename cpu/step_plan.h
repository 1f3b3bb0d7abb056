// What a step's threads look up instead of working out: where each token's K/V goes, which pieces of
// attention there are, the rotations of each position. Built once a step; allocates only when a step is
// larger than all before. Confined to the engine thread while built, read by the team afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_config.h"
#include "model/step_batch.h"

namespace tandem {

struct TokenPlace {
  const StepItem* item;
  int pos;  // position in its sequence
};

// Attention of some neighbouring tokens of one sequence, for the heads of one K/V head.
struct AttentionPiece {
  const StepItem* item;
  int kv_head;
  int token_begin, token_end;  // within the item
  int64_t cost;                // queries x keys
};

// Tokens that share a pass over the K/V: more saves reading K/V, fewer balances better.
constexpr int kTokensPerPiece = 16;

class StepPlan {
 public:
  explicit StepPlan(const ModelConfig& config) : config_(config), pieces_(config.kv_groups.size()) {}
  void build(const StepBatch& batch);

  int n_tokens() const { return static_cast<int>(places_.size()); }
  int n_logit_rows() const { return static_cast<int>(batch_->logit_rows.size()); }
  const StepBatch& batch() const { return *batch_; }
  const TokenPlace& place(int64_t token) const { return places_[static_cast<size_t>(token)]; }
  // Costliest first, so that the last piece to end is a small one.
  const std::vector<AttentionPiece>& pieces(int kv_group) const {
    return pieces_[static_cast<size_t>(kv_group)];
  }

 private:
  const ModelConfig& config_;
  const StepBatch* batch_ = nullptr;
  std::vector<TokenPlace> places_;
  std::vector<std::vector<AttentionPiece>> pieces_;
};

}  // namespace tandem
