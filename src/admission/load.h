// How loaded the box is, by cause, each from 0 to 1. Pure: what is measured is handed in. Confined to the supervisor's
// loop thread.
//
// DESIGN. A cause is linear from its own `zero` to its own `one` (the ladder file says where these are) and smoothed
// exponentially. A cause whose measurement is absent, late or broken has no value: it is shown as such, it leads to
// nothing, and it is never read as zero. `highest` is for show; rungs look at the causes that they help.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace tandem {

enum class LoadCause { kQueue, kCompute, kKv, kMemory, kHeat };
constexpr int kNumLoadCauses = 5;
const char* load_cause_name(LoadCause cause);  // "queue", "compute", "kv", "memory", "heat"
std::optional<LoadCause> parse_load_cause(const std::string& name);

// Where a cause begins to count and where it is 1. `one` below `zero` runs downwards (room to the trip point).
struct CauseScale {
  double zero = 0, one = 1;
  double of(double measured) const;  // clamped to [0, 1]
};

struct LoadScales {
  CauseScale queue{2, 20};            // seconds that the oldest waiting request has waited
  CauseScale compute{0.2, 1};         // seconds between two tokens of a stream, mean of the last second
  CauseScale kv{0.5, 1};              // pages of live sequences, share of the pool
  CauseScale memory_pressure{0.05, 0.4};   // PSI: share of time in which some task waits for memory
  CauseScale memory_used{0.9, 0.98};       // without PSI: share of memory that is not available
  CauseScale major_faults{200, 3000};      // without PSI: a second
  CauseScale heat_room{15, 2};        // degrees below the trip point
  CauseScale clock{0.7, 0.4};         // share of the maximum clock; counts only while the box is hot or throttled
  double throttled = 0.8;             // heat while the processor's own throttle counter rises
  double smoothing_s = 3;             // time constant
};

// One measurement. Empty: not known now.
struct LoadSample {
  std::optional<double> queue_wait_s, token_gap_s, kv_ratio;
  std::optional<double> memory_pressure, memory_used_ratio, major_faults_per_s;
  std::optional<double> heat_room_c, clock_ratio;
  std::optional<bool> is_throttled;  // the counter rose since the sample before
};

class Load {
 public:
  explicit Load(const LoadScales& scales) : scales_(scales) {}
  void set_scales(const LoadScales& scales) { scales_ = scales; }
  void sample(const LoadSample& sample, int64_t now_us);  // about once a second
  std::optional<double> value(LoadCause cause) const { return values_[static_cast<size_t>(cause)]; }
  std::optional<double> highest() const;

 private:
  std::array<std::optional<double>, kNumLoadCauses> measure(const LoadSample& sample) const;
  LoadScales scales_;
  std::array<std::optional<double>, kNumLoadCauses> values_;
  int64_t last_us_ = 0;
};

}  // namespace tandem
