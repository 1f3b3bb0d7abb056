#include "cpu/step_plan.h"

#include <algorithm>

namespace tandem {

void StepPlan::build(const StepBatch& batch) {
  batch_ = &batch;
  places_.resize(batch.tokens.size());
  for (const StepItem& item : batch.items) {
    for (int i = 0; i < item.n_tokens; ++i) {
      places_[static_cast<size_t>(item.first_token + i)] = {&item, item.first_pos + i};
    }
  }

  for (size_t g = 0; g < pieces_.size(); ++g) {
    const KvGroup& group = config_.kv_groups[g];
    std::vector<AttentionPiece>& pieces = pieces_[g];
    pieces.clear();
    for (const StepItem& item : batch.items) {
      for (int begin = 0; begin < item.n_tokens; begin += kTokensPerPiece) {
        const int end = std::min(begin + kTokensPerPiece, item.n_tokens);
        const int64_t keys_of_last = item.first_pos + end;
        const int64_t n_keys =
            group.window > 0 ? std::min<int64_t>(keys_of_last, group.window + end - begin) : keys_of_last;
        for (int h = 0; h < group.n_kv_heads; ++h) {
          pieces.push_back({&item, h, begin, end, n_keys * (end - begin)});
        }
      }
    }
    std::sort(pieces.begin(), pieces.end(), [](const AttentionPiece& a, const AttentionPiece& b) {
      if (a.cost != b.cost) return a.cost > b.cost;
      return a.item != b.item ? a.item < b.item : a.kv_head < b.kv_head;
    });
  }
}

}  // namespace tandem
