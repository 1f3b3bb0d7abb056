#include "admission/load.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

constexpr const char* kNames[kNumLoadCauses] = {"queue", "compute", "kv", "memory", "heat"};
constexpr double kLongestStepS = 10;  // after a pause (suspend) the new sample counts almost alone

std::optional<double> on_scale(const CauseScale& scale, std::optional<double> measured) {
  return measured && std::isfinite(*measured) ? std::optional(scale.of(*measured)) : std::nullopt;
}

std::optional<double> larger(std::optional<double> a, std::optional<double> b) {
  if (!a || !b) return a ? a : b;
  return std::max(*a, *b);
}

}  // namespace

const char* load_cause_name(LoadCause cause) { return kNames[static_cast<int>(cause)]; }

std::optional<LoadCause> parse_load_cause(const std::string& name) {
  for (int i = 0; i < kNumLoadCauses; ++i)
    if (name == kNames[i]) return static_cast<LoadCause>(i);
  return std::nullopt;
}

double CauseScale::of(double measured) const { return std::clamp((measured - zero) / (one - zero), 0.0, 1.0); }

std::array<std::optional<double>, kNumLoadCauses> Load::measure(const LoadSample& s) const {
  std::optional<double> memory = on_scale(scales_.memory_pressure, s.memory_pressure);
  if (!memory)
    memory = larger(on_scale(scales_.memory_used, s.memory_used_ratio), on_scale(scales_.major_faults, s.major_faults_per_s));
  std::optional<double> heat = on_scale(scales_.heat_room, s.heat_room_c);
  if (s.is_throttled) heat = larger(heat, *s.is_throttled ? scales_.throttled : 0);
  if (heat.value_or(0) > 0) heat = larger(heat, on_scale(scales_.clock, s.clock_ratio));
  return {on_scale(scales_.queue, s.queue_wait_s), on_scale(scales_.compute, s.token_gap_s),
          on_scale(scales_.kv, s.kv_ratio), memory, heat};
}

void Load::sample(const LoadSample& sample, int64_t now_us) {
  double dt_s = last_us_ == 0 ? kLongestStepS : std::clamp(static_cast<double>(now_us - last_us_) / 1e6, 0.0, kLongestStepS);
  double weight = 1 - std::exp(-dt_s / scales_.smoothing_s);
  auto measured = measure(sample);
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!measured[i] || !values_[i])
      values_[i] = measured[i];
    else
      *values_[i] += weight * (*measured[i] - *values_[i]);
  }
  last_us_ = now_us;
}

std::optional<double> Load::highest() const {
  std::optional<double> highest;
  for (const auto& value : values_) highest = larger(highest, value);
  return highest;
}

}  // namespace tandem
