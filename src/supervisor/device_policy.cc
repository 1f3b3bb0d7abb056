#include "supervisor/device_policy.h"

#include <algorithm>
#include <cstdlib>

namespace tandem {
namespace {
constexpr int64_t kLongestCooldownUs = 3'600'000'000;
}

int wanted_device(const Config& config, ipc::Role role) {
  if (config.gpu_device == "none") return -1;
  const bool is_wanted = role == ipc::Role::kDecode || (role == ipc::Role::kBoth && config.prefill_placement == "gpu");
  return is_wanted ? std::atoi(config.gpu_device.c_str()) : -1;  // config_validate() has looked at it
}

DevicePolicy::DevicePolicy(const Config& config, ipc::Role role)
    : wanted_(wanted_device(config, role)), fault_limit_(config.gpu_fault_limit), window_us_(config.gpu_fault_window_ms * 1000),
      cooldown_us_(config.gpu_cooldown_ms * 1000) {}

bool DevicePolicy::on_end(const std::string& cause, const std::string& reason, int64_t served_us, int64_t now_us) {
  if (wanted_ < 0 || is_given_up_) return false;
  if (served_us >= window_us_) n_given_up_ = 0;
  if (cause == "device" && served_us == kNeverReady) {  // it cannot even be opened, or holds too little
    give_up(reason, now_us);
    return true;
  }
  const bool is_fault = cause == "device" || cause == "watchdog" || cause == "crash" || cause == "internal";
  if (!is_fault) return false;
  faults_us_.push_back(now_us);
  while (!faults_us_.empty() && now_us - faults_us_.front() > window_us_) faults_us_.pop_front();
  if (static_cast<int64_t>(faults_us_.size()) < fault_limit_) return false;
  give_up(std::to_string(faults_us_.size()) + " faults within " + std::to_string(window_us_ / 1'000'000) + " s, the last: " + reason, now_us);
  return true;
}

void DevicePolicy::give_up(std::string cause, int64_t now_us) {
  is_given_up_ = true;
  cause_ = std::move(cause);
  faults_us_.clear();
  probe_at_us_ = now_us + std::min(kLongestCooldownUs, cooldown_us_ << std::min(n_given_up_, 16));
  ++n_given_up_;
}

void DevicePolicy::on_probe(bool is_there, const std::string& found, int64_t now_us) {
  if (!is_given_up_) return;
  if (!is_there) {
    if (!found.empty()) cause_ = found;
    probe_at_us_ = now_us + cooldown_us_;
    return;
  }
  is_given_up_ = false;
  cause_.clear();
}

}  // namespace tandem
