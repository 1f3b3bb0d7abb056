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
// [part_begin, part_end) of their keys (kernel_table.h), whose records go to the records' float `records` and
// on, those of the next part `stride` floats further.
struct AttentionPiece {
  const StepItem* item;
  int kv_head;
  int token_begin, token_end;  // within the item
  int part_begin, part_end;    // equal: whole
  int64_t records, stride;
  int64_t cost;                // queries x keys
};

// Whether the heads of one K/V head of a token were computed in parts, and where: part i of the token that is
// `index`-th of those that share a piece has its records [head][attention_record_floats] at `records` +
// i * `stride`, behind those of the tokens before it.
struct SplitToken {
  int n_parts;  // 0: computed whole
  int index;
  int64_t records, stride;
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
  const SplitToken& split(int kv_group, int64_t token, int kv_head) const {
    const Group& g = groups_[static_cast<size_t>(kv_group)];
    return g.split[static_cast<size_t>(token * g.n_kv_heads + kv_head)];
  }
  int64_t n_record_floats() const { return n_record_floats_; }  // of the group that needs most
  // At most, in any step of n_tokens tokens behind up to n_keys keys.
  int64_t most_record_floats(int n_threads, int n_tokens, int n_keys) const;

 private:
  struct Group {
    int n_kv_heads = 0;
    int64_t record_floats = 0;  // of one token's heads of one K/V head, in the layer that needs most
    std::vector<AttentionPiece> pieces;
    std::vector<SplitToken> split;  // [n_tokens][n_kv_heads]
  };
  void cut_by_tokens(const KvGroup& group, int n_threads, Group* out) const;
  void cut_by_keys(const KvGroup& group, int n_threads, Group* out);
  struct Records {
    int64_t n_floats, limit;
  };
  static int64_t record_limit(const Group& group, int n_threads, int64_t n_tokens, int64_t n_keys);
  static bool split_piece(const KvGroup& group, const AttentionPiece& whole, int64_t most, Group* out, Records* records);

  const ModelConfig& config_;
  const StepBatch* batch_ = nullptr;
  std::vector<TokenPlace> places_;
  std::vector<Group> groups_;
  std::vector<AttentionPiece> whole_;  // scratch of cut_by_keys, as is loads_
  std::vector<int64_t> loads_;
  int64_t n_record_floats_ = 0;
};

}  // namespace tandem
