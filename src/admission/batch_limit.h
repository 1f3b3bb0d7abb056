// The rung `batch`: how many of a worker's places are given out. While the rung is on, a quarter fewer each second, down to a
// quarter of all; afterwards an eighth more every two seconds. Nobody is taken back from a worker: the batch follows as its
// sequences end. Pure logic, confined to the supervisor's loop thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

class BatchLimit {
 public:
  // At most one step a second however often it is called.
  void turn(bool is_rung_on, int64_t now_us);
  // Of `n_places`, at least one.
  size_t apply(size_t n_places) const;
  // Until all places are given out again, so also for a while after the rung was left.
  bool is_limiting() const { return share_ < 1; }

 private:
  double share_ = 1;
  int64_t changed_us_ = INT64_MIN / 2;
};

}  // namespace tandem
