// Seconds a refused client is told to wait: until all who wait now have been served, by the rate at
// which requests ended lately. Time in which nothing was there to do is left out, so a quiet hour
// does not make the server look slow. Pure logic over a Clock; confined to the supervisor's loop
// thread.
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
  void set_busy(bool is_busy);  // whether any accepted request is there; at first none
  // Whole seconds, 1 to kMaxSeconds, until a place is likely free behind `n_waiting` requests.
  int estimate_s(size_t n_waiting) const;

  static constexpr int kMaxSeconds = 120;
  static constexpr int kUnknownSeconds = 5;  // nothing ever ended: no rate to go by
  static constexpr int64_t kWindowUs =
      60'000'000;  // of busy time: long enough for slow boxes to end a few requests
  static constexpr size_t kMaxSamples = 512;

 private:
  int64_t busy_us() const;  // busy time so far: what the samples are stamped with

  const Clock* clock_;
  std::deque<int64_t> ended_us_;  // oldest first, at most kMaxSamples
  int64_t busy_before_us_ = 0, busy_since_us_ = 0;
  bool is_busy_ = false;
};

}  // namespace tandem
