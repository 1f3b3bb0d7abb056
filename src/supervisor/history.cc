#include "supervisor/history.h"

#include <algorithm>
#include <utility>

namespace tandem {

void History::Samples::add(double value) {
  if (values.size() < kMaxSamples)
    values.push_back(value);
  else
    values[n % kMaxSamples] = value;
  ++n;
}

double History::Samples::take_median() {
  std::vector<double> taken = std::exchange(values, {});
  n = 0;
  if (taken.empty()) return -1;
  auto middle = taken.begin() + static_cast<std::ptrdiff_t>(taken.size() / 2);
  std::nth_element(taken.begin(), middle, taken.end());
  return *middle;
}

void History::note_first_token(double ttft_s) { ttft_.add(ttft_s); }
void History::note_gap(double gap_s) { gaps_.add(gap_s); }

void History::turn(int64_t now_us) {
  if (begin_us_ == 0) begin_us_ = now_us;
  if (now_us - begin_us_ < kPointUs) return;
  HistoryPoint point;
  point.end_us = now_us;
  point.ttft_s = ttft_.take_median();
  point.inter_token_s = gaps_.take_median();
  point.tokens_per_s =
      static_cast<double>(std::exchange(n_tokens_, 0)) * 1e6 / static_cast<double>(now_us - begin_us_);
  begin_us_ = now_us;
  points_.push_back(point);
  while (!points_.empty() &&
         (points_.size() > kPoints ||
          now_us - points_.front().end_us > static_cast<int64_t>(kPoints) * kPointUs))
    points_.pop_front();
}

}  // namespace tandem
