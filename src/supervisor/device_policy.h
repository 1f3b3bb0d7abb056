// Whether a worker that has a device wanted for it runs there or on the processor. DESIGN. A device that cannot be
// opened, or that fails gpu.fault_limit times within gpu.fault_window_ms, is given up: the next life runs on the
// processor and says so. After gpu.cooldown_ms the device is looked at by a probe; where that finds it, the worker goes
// back. Each give-up in a row doubles the cool-down, up to an hour; a life on the device that served for a whole window
// ends the row. Pure logic; confined to the supervisor's loop thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "base/config.h"
#include "ipc/messages.h"

namespace tandem {

// The number of the device that a worker of this role is to run on; -1: on the processor.
int wanted_device(const Config& config, ipc::Role role);

class DevicePolicy {
 public:
  DevicePolicy(const Config& config, ipc::Role role);

  int device() const { return is_given_up_ ? -1 : wanted_; }  // of the next life; -1: the processor
  bool is_given_up() const { return is_given_up_; }
  const std::string& cause() const { return cause_; }          // why it is given up
  // A life on the device ended by `cause` (a label of llm_worker_restarts_total), having served for so long; kNeverReady:
  // it did not come to open the device and load. True: the device is given up with this.
  static constexpr int64_t kNeverReady = -1;
  bool on_end(const std::string& cause, const std::string& reason, int64_t served_us, int64_t now_us);
  bool is_probe_due(int64_t now_us) const { return is_given_up_ && now_us >= probe_at_us_; }
  void on_probe(bool is_there, const std::string& found, int64_t now_us);

 private:
  void give_up(std::string cause, int64_t now_us);

  const int wanted_;
  const int64_t fault_limit_, window_us_, cooldown_us_;
  bool is_given_up_ = false;
  std::string cause_;
  std::deque<int64_t> faults_us_;
  int n_given_up_ = 0;  // in a row
  int64_t probe_at_us_ = 0;
};

}  // namespace tandem
