#include "api/key_limits.h"

#include <algorithm>
#include <cmath>

namespace tandem::api {

ApiResult<std::shared_ptr<void>> KeyLimits::take(const std::string& client, const KeyLimit& limit, int64_t now_us) {
  if (limit.max_running == 0 && limit.max_per_minute == 0) return std::shared_ptr<void>();
  std::lock_guard lock(state_->mutex);
  Use& use = state_->uses[client];
  if (limit.max_running > 0 && use.n_running >= limit.max_running)
    return api_error("key_limit_exceeded",
                     "this key may have " + std::to_string(limit.max_running) + " requests at the same time; wait for one to end", "", 1);
  if (limit.max_per_minute > 0) {
    double most = limit.max_per_minute, each_us = 60e6 / most;
    if (use.refilled_us < 0) use.allowance = most, use.refilled_us = now_us;
    use.allowance = std::min(most, use.allowance + static_cast<double>(now_us - use.refilled_us) / each_us);
    use.refilled_us = now_us;
    if (use.allowance < 1) {
      int wait_s = static_cast<int>(std::ceil((1 - use.allowance) * each_us / 1e6));
      return api_error("key_limit_exceeded", "this key may have " + std::to_string(limit.max_per_minute) + " requests a minute", "",
                       std::max(1, wait_s));
    }
    use.allowance -= 1;
  }
  ++use.n_running;
  return std::shared_ptr<void>(static_cast<void*>(&use), [state = state_, client](void*) {
    std::lock_guard held(state->mutex);
    --state->uses[client].n_running;
  });
}

}  // namespace tandem::api
