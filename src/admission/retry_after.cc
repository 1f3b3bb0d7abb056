#include "admission/retry_after.h"

#include <algorithm>
#include <cmath>

namespace tandem {

void RetryAfter::on_completion() {
  ended_us_.push_back(clock_->now_us());
  if (ended_us_.size() > kMaxSamples) ended_us_.pop_front();
}

int RetryAfter::estimate_s(size_t n_waiting) const {
  int64_t now = clock_->now_us();
  auto first = std::find_if(ended_us_.begin(), ended_us_.end(),
                            [&](int64_t t) { return t > now - kWindowUs; });
  auto n = static_cast<double>(ended_us_.end() - first);
  if (n < 1) return kUnknownSeconds;
  // From the oldest of them on, not the whole window: the process may be younger than that.
  int64_t span_us = std::max<int64_t>(now - *first, 1'000'000);
  double seconds_each = static_cast<double>(span_us) / 1e6 / n;
  double seconds = std::ceil(seconds_each * static_cast<double>(n_waiting + 1));
  return static_cast<int>(std::clamp<double>(seconds, 1, kMaxSeconds));
}

}  // namespace tandem
