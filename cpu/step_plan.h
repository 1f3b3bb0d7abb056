// What a step's threads look up instead of working out: where each token's K/V goes, which pieces of
// attention there are. Built once a step; allocates only when a step is larger than all before. Confined to
// the engine thread while built, read by the team afterwards.
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

// Attention of some neighbouring tokens of one sequence, for the heads of one K/V head: whole, or parts
// [part_begin, part_end) of one token's keys (kernel_table.h), whose records go to the records' float
// `records` and on.
struct AttentionPiece {
  const StepItem* item;
  int kv_head;
  int token_begin, token_end;  // within the item
  int part_begin, part_end;    // equal: whole
  int64_t records;
  int64_t cost;                // queries x keys
};

// A token whose attention was computed in parts: records [n_parts][n_heads][attention_record_floats].
struct SplitToken {
  int n_parts;  // 0: computed whole
  int64_t records;
};

// Tokens that share a pass over the K/V: more saves reading K/V, fewer balances better.
constexpr int kTokensPerPiece = 32;

class CpuStepPlan {
 public:
  explicit CpuStepPlan(const ModelConfig& config);
  // How the work is cut depends on n_threads; the bits that come out do not.
  void build(const StepBatch& batch, int n_threads);

  int n_tokens() const { return static_cast<int>(places_.size()); }
  int n_logit_rows() const { return static_cast<int>(batch_->logit_rows.size()); }
  const StepBatch& batch() const { return *batch_; }
  const TokenPlace& place(int64_t token) const { return places_[static_cast<size_t>(token)]; }
  // Costliest first, so that the last piece to end is a small one.
  const std::vector<AttentionPiece>& pieces(int kv_group) const {
    return groups_[static_cast<size_t>(kv_group)].pieces;
  }
  const SplitToken& split(int kv_group, int64_t token) const {
    return groups_[static_cast<size_t>(kv_group)].split[static_cast<size_t>(token)];
  }
  // Floats between the records of two parts of a token.
  int64_t part_stride(int kv_group) const { return groups_[static_cast<size_t>(kv_group)].part_stride; }
  int64_t n_record_floats() const { return n_record_floats_; }  // of the group that needs most

 private:
  struct Group {
    int64_t part_stride = 0;
    std::vector<AttentionPiece> pieces;
    std::vector<SplitToken> split;  // [n_tokens]
  };
  void build_group(const KvGroup& group, int n_threads, Group* out);

  const ModelConfig& config_;
  const StepBatch* batch_ = nullptr;
  std::vector<TokenPlace> places_;
  std::vector<Group> groups_;
  int64_t n_record_floats_ = 0;
};

}  // namespace tandem
