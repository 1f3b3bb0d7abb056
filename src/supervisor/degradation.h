// Brings load, ladder and box together: measures each second, asks the policy, and tells log, metrics, status page
// and dispatcher. Confined to the supervisor's loop thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "admission/batch_limit.h"
#include "admission/degrade_policy.h"
#include "api/service.h"
#include "base/config.h"
#include "base/status.h"
#include "metrics/metrics.h"
#include "supervisor/host_sensors.h"

namespace tandem {

// The ladder of the configuration: degrade.ladder_file, else /etc/tandem/degrade_ladder.toml if it is there, else the
// one embedded at build time; without rungs when degrade.enabled is false.
Result<Ladder> load_ladder(const Config& config);

// For the status page: a copy.
struct DegradationView {
  struct CauseView {
    const char* name = "";
    std::optional<double> value;
    std::string note;  // why there is no value
  };
  struct RungView {
    const char* name = "";
    std::string causes;
    double enter = 0, leave = 0;
    bool is_active = false;
    std::string pinned, skip_reason;  // pinned: "", "on", "off"
  };
  std::array<CauseView, kNumLoadCauses> causes;
  std::vector<RungView> rungs;
};

class Degradation {
 public:
  static constexpr int64_t kPeriodUs = 1'000'000;
  Degradation(Ladder ladder, Metrics* metrics);
  void replace_ladder(Ladder ladder);  // takes effect with the next turn

  struct Inputs {
    std::optional<double> queue_wait_s;  // of the oldest waiting request
    bool is_queue_full = false;
    bool is_busy = false;                // requests are at a worker
    std::optional<double> kv_ratio;
    HostReadings host;
  };
  void note_token_gap(double gap_s) { gap_sum_s_ += gap_s, ++n_gaps_; }
  // Why no worker has a lean set of weights that serves; "": one has.
  void note_lean_set(const std::string& no_lean_reason);
  bool is_due(int64_t now_us) const { return now_us >= next_us_; }
  void turn(const Inputs& inputs, int64_t now_us);

  const DegradePolicy& policy() const { return policy_; }
  const BatchLimit& batch_limit() const { return batch_limit_; }
  // One sentence on what a pin or its end did.
  api::ApiResult<std::string> set(const std::string& rung, std::optional<bool> pin);
  std::string cause() const;  // "" or what is reduced and why, one sentence
  DegradationView view() const;

 private:
  bool is_active(RungKind kind) const;  // on, or its effect still there
  LoadSample measure(const Inputs& inputs, int64_t now_us);
  void export_metrics();

  Metrics* metrics_;
  Load load_;
  DegradePolicy policy_;
  BatchLimit batch_limit_;
  std::array<std::string, kNumLoadCauses> notes_;
  std::array<std::string, kNumRungs> whys_;
  double gap_sum_s_ = 0;
  int64_t n_gaps_ = 0, next_us_ = 0, last_us_ = 0;
  std::optional<double> last_throttles_, last_faults_;
};

}  // namespace tandem
