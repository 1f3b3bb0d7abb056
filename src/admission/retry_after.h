// Seconds a refused client is told to wait, from the rate at which requests ended lately. Pure
// logic over a Clock; confined to the supervisor's loop thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "base/clock.h"

namespace tandem {

class RetryAfter {
 public:
  explicit RetryAfter(const Clock* clock) : clock_(clock) {}
  void on_completion();  // a request ended after having run
  // Whole seconds, 1 to kMaxSeconds, until a place is likely free behind `n_waiting` requests.
  int estimate_s(size_t n_waiting) const;

  static constexpr int kMaxSeconds = 120;
  static constexpr int kUnknownSeconds = 5;  // nothing ended in the window: no rate to go by
  static constexpr int64_t kWindowUs =
      60'000'000;  // long enough for slow boxes to end a few requests
  static constexpr size_t kMaxSamples = 512;

 private:
  const Clock* clock_;
  std::deque<int64_t> ended_us_;  // oldest first, at most kMaxSamples
};

}  // namespace tandem
