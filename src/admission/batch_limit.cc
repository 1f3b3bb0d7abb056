#include "admission/batch_limit.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr int64_t kShrinkUs = 900'000;  // a second, less what a loop may be early
constexpr int64_t kGrowUs = 1'900'000;
constexpr double kShrink = 0.75, kLeast = 0.25, kGrow = 0.125;  // back to all in 12 s at most

}  // namespace

void BatchLimit::turn(bool is_rung_on, int64_t now_us) {
  const double wanted = is_rung_on ? std::max(kLeast, share_ * kShrink) : std::min(1.0, share_ + kGrow);
  if (wanted == share_ || now_us - changed_us_ < (is_rung_on ? kShrinkUs : kGrowUs)) return;
  share_ = wanted;
  changed_us_ = now_us;
}

size_t BatchLimit::apply(size_t n_places) const {
  return std::max<size_t>(1, static_cast<size_t>(static_cast<double>(n_places) * share_));
}

}  // namespace tandem
