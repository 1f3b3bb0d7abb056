#include "admission/retry_after.h"

#include <algorithm>
#include <cmath>

namespace tandem {

int64_t RetryAfter::busy_us() const {
  return busy_before_us_ + (is_busy_ ? clock_->now_us() - busy_since_us_ : 0);
}

void RetryAfter::set_busy(bool is_busy) {
  if (is_busy == is_busy_) return;
  busy_before_us_ = busy_us();
  busy_since_us_ = clock_->now_us();
  is_busy_ = is_busy;
}

void RetryAfter::on_completion() {
  ended_us_.push_back(busy_us());
  if (ended_us_.size() > kMaxSamples) ended_us_.pop_front();
}

int RetryAfter::estimate_s(size_t n_waiting) const {
  int64_t now = busy_us();
  auto first = std::find_if(ended_us_.begin(), ended_us_.end(),
                            [&](int64_t t) { return t > now - kWindowUs; });
  auto n = static_cast<double>(ended_us_.end() - first);
  // Nothing ended for a whole window of work: each takes longer than that.
  if (n < 1 && !ended_us_.empty()) return kMaxSeconds;
  if (n < 1) {
    int64_t seconds = std::max<int64_t>(kUnknownSeconds, now / 1'000'000);
    return static_cast<int>(std::min<int64_t>(seconds, kMaxSeconds));
  }
  // From the oldest of them on, not the whole window: the process may be younger than that.
  int64_t span_us = std::max<int64_t>(now - *first, 1'000'000);
  double seconds_each = static_cast<double>(span_us) / 1e6 / n;
  double seconds = std::ceil(seconds_each * static_cast<double>(n_waiting + 1));
  return static_cast<int>(std::clamp<double>(seconds, 1, kMaxSeconds));
}

}  // namespace tandem
