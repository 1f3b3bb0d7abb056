// When a worker that ended is started again. Pure logic; confined to the supervisor's loop thread.
#pragma once

#include <cstdint>

namespace tandem {

class RestartPolicy {
 public:
  static constexpr int64_t kFirstDelayUs = 200'000;
  static constexpr int64_t kMaxDelayUs = 30'000'000;

  // Delay before the next start. The first restart is immediate; back-off (0.2 s doubling to 30 s)
  // counts only lives without progress (no prompt chunk, no token, not even a while of idle
  // readiness).
  int64_t on_end(bool made_progress);
  int lives_without_progress() const { return failures_; }
  void reset() { failures_ = 0; }  // the model file changed: a new start

 private:
  int failures_ = 0;
};

}  // namespace tandem
