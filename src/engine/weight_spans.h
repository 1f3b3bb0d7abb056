// Which set of weights computed which positions of a sequence. What a position computes depends on the sets of all
// before it, so a position that is computed again (after a preemption, or by another worker) takes the set it had.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/step_batch.h"

namespace tandem {

class WeightSpans {
 public:
  WeightSpans() = default;
  // `borders`: ascending positions at which the set changes, beginning with the full set; of positions [0, n).
  WeightSpans(std::vector<uint32_t> borders, int n) : borders_(std::move(borders)), n_(n) { cut(); }

  int n_recorded() const { return n_; }
  const std::vector<uint32_t>& borders() const { return borders_; }
  bool has_lean() const { return !borders_.empty(); }

  // Of a position without a record: `next`.
  WeightSet at(int pos, WeightSet next) const {
    if (pos >= n_) return next;
    auto n_before = std::upper_bound(borders_.begin(), borders_.end(), static_cast<uint32_t>(pos)) - borders_.begin();
    return n_before % 2 == 0 ? WeightSet::kFull : WeightSet::kLean;
  }
  // How many positions from `pos` on take the set that `pos` takes.
  int run(int pos, WeightSet next) const {
    WeightSet set = at(pos, next);
    auto border = std::upper_bound(borders_.begin(), borders_.end(), static_cast<uint32_t>(pos));
    if (pos < n_ && border != borders_.end()) return static_cast<int>(*border) - pos;
    if (pos < n_ && set != next) return n_ - pos;
    return INT_MAX;
  }
  // Positions [n_recorded, end) were computed with `set`; those recorded stay as they are.
  void record(int end, WeightSet set) {
    if (end <= n_) return;
    WeightSet last = borders_.size() % 2 == 0 ? WeightSet::kFull : WeightSet::kLean;
    if (set != last) borders_.push_back(static_cast<uint32_t>(n_));
    n_ = end;
  }
  bool agrees_with(const WeightSpans& other, int n_positions, WeightSet next) const {
    for (int pos = 0; pos < n_positions;) {
      if (at(pos, next) != other.at(pos, next)) return false;
      int step = std::min(run(pos, next), other.run(pos, next));
      if (step >= n_positions - pos) return true;
      pos += step;
    }
    return true;
  }
  // Of positions [0, n) alone.
  WeightSpans first(int n) const { return WeightSpans(borders_, std::min(n, n_)); }

 private:
  void cut() {
    while (!borders_.empty() && borders_.back() >= static_cast<uint32_t>(n_)) borders_.pop_back();
  }

  std::vector<uint32_t> borders_;
  int n_ = 0;
};

}  // namespace tandem
