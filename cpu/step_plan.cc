#include "cpu/step_plan.h"

#include <algorithm>

#include "kernels/kernel_table.h"

namespace tandem {
namespace {

// Pieces a thread should have to choose from, so that the last to end does not make the others wait.
constexpr int kPiecesPerThread = 4;
// Items of at most this many tokens are split along their keys: a decode step, which has nothing else to
// share out. Longer ones have enough tokens.
constexpr int kFewTokens = 4;

// Keys that tokens [begin, end) of the item see together.
int64_t keys_of(const KvGroup& group, const StepItem& item, int begin, int end) {
  const int64_t last = item.first_pos + end;
  return group.window > 0 ? std::min<int64_t>(last, group.window + end - begin) : last;
}

int64_t n_pieces(const StepBatch& batch, int tokens_per_piece) {
  int64_t n = 0;
  for (const StepItem& item : batch.items) n += (item.n_tokens + tokens_per_piece - 1) / tokens_per_piece;
  return n;
}

}  // namespace

CpuStepPlan::CpuStepPlan(const ModelConfig& config) : config_(config), groups_(config.kv_groups.size()) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (int layer : config.kv_groups[g].layers) {
      const LayerConfig& l = config.layers[static_cast<size_t>(layer)];
      groups_[g].part_stride =
          std::max(groups_[g].part_stride, l.n_heads * attention_record_floats(l.head_dim));
    }
  }
}

void CpuStepPlan::build_group(const KvGroup& group, int n_threads, Group* out) {
  const int64_t wanted = int64_t{n_threads} * kPiecesPerThread;
  int tokens_per_piece = kTokensPerPiece;
  while (tokens_per_piece > kFewTokens && n_pieces(*batch_, tokens_per_piece) * group.n_kv_heads < wanted) {
    tokens_per_piece /= 2;
  }
  int64_t total = 0;
  out->pieces.clear();
  for (const StepItem& item : batch_->items) {
    for (int begin = 0; begin < item.n_tokens; begin += tokens_per_piece) {
      const int end = std::min(begin + tokens_per_piece, item.n_tokens);
      const int64_t cost = keys_of(group, item, begin, end) * (end - begin);
      for (int h = 0; h < group.n_kv_heads; ++h) out->pieces.push_back({&item, h, begin, end, 0, 0, 0, cost});
      total += cost * group.n_kv_heads;
    }
  }

  out->split.assign(places_.size(), {0, 0});
  const int64_t most = total / wanted;
  int64_t n_floats = 0;
  const size_t n_whole = n_threads > 1 ? out->pieces.size() : 0;
  for (size_t i = 0; i < n_whole; ++i) {
    const AttentionPiece whole = out->pieces[i];
    if (whole.cost <= most || whole.item->n_tokens > kFewTokens) continue;
    bool is_first = true;  // this piece's place in the list goes to the first part
    for (int t = whole.token_begin; t < whole.token_end; ++t) {
      const int pos = whole.item->first_pos + t;
      const int first_key = group.window > 0 ? std::max(0, pos - group.window + 1) : 0;
      const int first = first_key / kAttentionPartKeys, n_parts = pos / kAttentionPartKeys + 1 - first;
      SplitToken& split = out->split[static_cast<size_t>(whole.item->first_token + t)];
      if (split.n_parts == 0) {  // the first K/V head of this token
        split = {n_parts, n_floats};
        n_floats += n_parts * out->part_stride;
      }
      const int step = static_cast<int>(std::max<int64_t>(1, most / kAttentionPartKeys));
      for (int part = 0; part < n_parts; part += step) {
        const int end = std::min(part + step, n_parts);
        AttentionPiece piece = {whole.item,   whole.kv_head, t, t + 1, first + part, first + end,
                                split.records + part * out->part_stride,
                                int64_t{end - part} * kAttentionPartKeys};
        if (is_first) {
          out->pieces[i] = piece;
          is_first = false;
        } else {
          out->pieces.push_back(piece);
        }
      }
    }
  }
  n_record_floats_ = std::max(n_record_floats_, n_floats);
  std::sort(out->pieces.begin(), out->pieces.end(), [](const AttentionPiece& a, const AttentionPiece& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    if (a.item != b.item) return a.item < b.item;
    return a.kv_head != b.kv_head ? a.kv_head < b.kv_head : a.part_begin < b.part_begin;
  });
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
  for (size_t g = 0; g < groups_.size(); ++g) build_group(config_.kv_groups[g], n_threads, &groups_[g]);
}

}  // namespace tandem
