// All workers of this appliance, by role: their keepers, and the memory files of their KV pools. Confined to the
// supervisor's loop thread.
#pragma once

#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "metrics/metrics.h"
#include "metrics/worker_counters.h"
#include "supervisor/host_pool_file.h"
#include "supervisor/worker_keeper.h"

namespace tandem {

class Fleet {
 public:
  struct Hooks {  // `lane`: index into keepers()
    std::function<void(int lane, ipc::FromWorker)> on_message;
    std::function<void(int lane, const WorkerEnd&)> on_end;
    std::function<bool(int lane)> has_work;
    std::function<bool(const std::string& model_path)> wants_measurement;  // prompt_placement.h
  };
  Fleet(const Config& config, Metrics* metrics, const Clock* clock, Hooks hooks);

  const std::vector<std::unique_ptr<WorkerKeeper>>& keepers() const { return keepers_; }
  std::vector<WorkerLink*> links() const;
  // The worker that speaks for all (worker_link.h).
  const WorkerKeeper& spokesman() const;
  bool can_serve() const;
  bool is_stopped() const;

  void add_pollfds(std::vector<pollfd>* fds) const;
  void turn();
  int64_t next_wakeup_us() const;
  void reload(const Config& config);
  void set_log_level(const std::string& level);
  void stop();

 private:
  void show_up() const;
  Metrics* metrics_;
  WorkerGauges gauges_;
  std::vector<std::unique_ptr<HostPoolFile>> pools_;  // before the keepers that use them
  std::vector<std::unique_ptr<WorkerKeeper>> keepers_;
};

}  // namespace tandem
