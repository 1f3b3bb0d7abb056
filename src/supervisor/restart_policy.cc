#include "supervisor/restart_policy.h"

#include <algorithm>

namespace tandem {

int64_t RestartPolicy::on_end(bool made_progress) {
  if (made_progress) {
    failures_ = 0;
    return 0;
  }
  int doublings = failures_++ - 1;
  if (doublings < 0) return 0;
  return std::min(kMaxDelayUs, kFirstDelayUs << std::min(doublings, 20));
}

}  // namespace tandem
