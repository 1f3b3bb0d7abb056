#include "cpu/step_plan.h"

#include <algorithm>

#include "kernels/kernel_table.h"

namespace tandem {
namespace {

// Pieces that a thread should have to choose from, so that the last to end does not make the others wait.
constexpr int kPiecesPerThread = 8;
// Fewer tokens a piece do not pay: each piece reads its K/V anew.
constexpr int kLeastTokensPerPiece = 4;
// What may be split, so that records need not much memory: tokens for one K/V head, and floats (64 MiB). What would
// exceed it is computed whole.
constexpr int64_t kMostSplitPerThread = 3 * kTokensPerPiece;
constexpr int64_t kMostRecordFloats = 16 << 20;

// Keys that tokens [begin, end) of the item see together.
int64_t keys_of(const KvGroup& group, const StepItem& item, int begin, int end) {
  const int64_t last = item.first_pos + end;
  return group.window > 0 ? std::min<int64_t>(last, group.window + end - begin) : last;
}

// The first part and the number of parts that hold keys of tokens [begin, end) of the item.
struct Parts {
  int first, n;
};
Parts parts_of(const KvGroup& group, const StepItem& item, int begin, int end) {
  const int first_key = group.window > 0 ? std::max(0, item.first_pos + begin - group.window + 1) : 0;
  const int first = first_key / kAttentionPartKeys;
  return {first, (item.first_pos + end - 1) / kAttentionPartKeys + 1 - first};
}

// Pieces that the step could be cut into.
int64_t most_pieces(const KvGroup& group, const StepBatch& batch, int tokens_per_piece) {
  int64_t n = 0;
  for (const StepItem& item : batch.items) {
    for (int begin = 0; begin < item.n_tokens; begin += tokens_per_piece)
      n += parts_of(group, item, begin, std::min(begin + tokens_per_piece, item.n_tokens)).n;
  }
  return n * group.n_kv_heads;
}

bool is_costlier(const AttentionPiece& a, const AttentionPiece& b) {
  if (a.cost != b.cost) return a.cost > b.cost;
  if (a.item != b.item) return a.item < b.item;
  if (a.token_begin != b.token_begin) return a.token_begin < b.token_begin;
  return a.kv_head != b.kv_head ? a.kv_head < b.kv_head : a.part_begin < b.part_begin;
}

}  // namespace

CpuStepPlan::CpuStepPlan(const ModelConfig& config) : config_(config), groups_(config.kv_groups.size()) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].n_kv_heads = config.kv_groups[g].n_kv_heads;
    for (int layer : config.kv_groups[g].layers) {
      const LayerConfig& l = config.layers[static_cast<size_t>(layer)];
      groups_[g].record_floats = std::max(groups_[g].record_floats,
                                          l.n_heads / l.n_kv_heads * attention_record_floats(l.head_dim));
    }
  }
}

int64_t CpuStepPlan::record_limit(const Group& group, int n_threads, int64_t n_tokens, int64_t n_keys) {
  if (n_threads == 1) return 0;
  const int64_t n_split = std::min(n_threads * kMostSplitPerThread, n_tokens * group.n_kv_heads);
  return std::min(kMostRecordFloats, n_split * (n_keys / kAttentionPartKeys + 1) * group.record_floats);
}

int64_t CpuStepPlan::most_record_floats(int n_threads, int n_tokens, int n_keys) const {
  int64_t most = 0;
  for (const Group& g : groups_) most = std::max(most, record_limit(g, n_threads, n_tokens, n_keys));
  return most;
}

void CpuStepPlan::cut_by_tokens(const KvGroup& group, int n_threads, Group* out) const {
  const int64_t wanted = int64_t{n_threads} * kPiecesPerThread;
  int tokens_per_piece = kTokensPerPiece;
  while (tokens_per_piece > kLeastTokensPerPiece && most_pieces(group, *batch_, tokens_per_piece) < wanted)
    tokens_per_piece /= 2;
  out->pieces.clear();
  for (const StepItem& item : batch_->items) {
    for (int begin = 0; begin < item.n_tokens; begin += tokens_per_piece) {
      const int end = std::min(begin + tokens_per_piece, item.n_tokens);
      const int64_t cost = keys_of(group, item, begin, end) * (end - begin);
      for (int h = 0; h < group.n_kv_heads; ++h) out->pieces.push_back({&item, h, begin, end, 0, 0, 0, 0, cost});
    }
  }
}

// Appends the parts of `whole` to the pieces, each of about `most` at most. False: it stays whole.
bool CpuStepPlan::split_piece(const KvGroup& group, const AttentionPiece& whole, int64_t most, Group* out,
                              Records* records) {
  const StepItem& item = *whole.item;
  const Parts parts = parts_of(group, item, whole.token_begin, whole.token_end);
  const int n_tokens = whole.token_end - whole.token_begin;
  const int64_t stride = n_tokens * out->record_floats, part_cost = int64_t{n_tokens} * kAttentionPartKeys;
  if (parts.n < 2 || records->n_floats + parts.n * stride > records->limit) return false;
  for (int t = whole.token_begin; t < whole.token_end; ++t) {
    out->split[static_cast<size_t>((item.first_token + t) * out->n_kv_heads + whole.kv_head)] = {
        parts.n, t - whole.token_begin, records->n_floats, stride};
  }
  const int step = static_cast<int>(std::max<int64_t>(1, most / part_cost));
  for (int part = 0; part < parts.n; part += step) {
    AttentionPiece piece = whole;
    piece.part_begin = parts.first + part;
    piece.part_end = parts.first + std::min(part + step, parts.n);
    piece.records = records->n_floats + part * stride;
    piece.stride = stride;
    piece.cost = (piece.part_end - piece.part_begin) * part_cost;
    out->pieces.push_back(piece);
  }
  records->n_floats += parts.n * stride;
  return true;
}

// The costliest piece goes to the thread that has least to do, as the team will take them. One that would end in the
// last quarter of a thread's fair share or later is split along its keys: a thread that is slower than the others
// then takes fewer. Those before stay whole, since records have to be joined.
void CpuStepPlan::cut_by_keys(const KvGroup& group, int n_threads, Group* out) {
  out->split.assign(places_.size() * static_cast<size_t>(group.n_kv_heads), {});
  std::sort(out->pieces.begin(), out->pieces.end(), is_costlier);
  if (n_threads == 1) return;
  std::swap(whole_, out->pieces);
  out->pieces.clear();
  int64_t total = 0, n_keys = 0;
  for (const AttentionPiece& p : whole_) {
    total += p.cost;
    n_keys = std::max<int64_t>(n_keys, p.item->first_pos + p.token_end);
  }
  Records records{0, record_limit(*out, n_threads, n_tokens(), n_keys)};
  const int64_t fair = total / n_threads, most = fair / kPiecesPerThread;
  loads_.assign(static_cast<size_t>(n_threads), 0);
  for (const AttentionPiece& p : whole_) {
    const size_t n = out->pieces.size();
    const bool is_late = p.cost > most && *std::min_element(loads_.begin(), loads_.end()) + p.cost > fair * 3 / 4;
    if (!is_late || !split_piece(group, p, most, out, &records)) out->pieces.push_back(p);
    for (size_t i = n; i < out->pieces.size(); ++i)
      *std::min_element(loads_.begin(), loads_.end()) += out->pieces[i].cost;
  }
  n_record_floats_ = std::max(n_record_floats_, records.n_floats);
  std::sort(out->pieces.begin(), out->pieces.end(), is_costlier);
}

void CpuStepPlan::build(const StepBatch& batch, int n_threads) {
  batch_ = &batch;
  places_.resize(batch.tokens.size());
  for (const StepItem& item : batch.items) {
    for (int i = 0; i < item.n_tokens; ++i) {
      places_[static_cast<size_t>(item.first_token + i)] = {&item, item.first_pos + i};
    }
  }
  n_record_floats_ = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    cut_by_tokens(config_.kv_groups[g], n_threads, &groups_[g]);
    cut_by_keys(config_.kv_groups[g], n_threads, &groups_[g]);
  }
}

}  // namespace tandem
