// Keeps one worker running: finds and opens the model, starts, watches, kills, restarts. What the
// worker does is the dispatcher's business, which hears of it through the hooks. Confined to the
// supervisor's loop thread.
//
// States: kNoModel (file missing or unreadable: tried each second) -> kLoading -> kReady -> (ended)
// -> kBackoff -> kLoading; exit code 78 -> kRefused, until the model's files or the configuration
// change.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "ipc/messages.h"
#include "metrics/metrics.h"
#include "metrics/worker_counters.h"
#include "supervisor/device_policy.h"
#include "supervisor/device_probe.h"
#include "supervisor/host_pool_file.h"
#include "supervisor/restart_policy.h"
#include "supervisor/worker_link.h"
#include "supervisor/worker_process.h"

namespace tandem {

class WorkerKeeper : public WorkerLink {
 public:
  struct Hooks {
    std::function<void()> on_up_changed;              // became ready, or ended
    std::function<void(ipc::FromWorker)> on_message;  // replies, tokens, prompt progress
    std::function<void(const WorkerEnd&)> on_end;     // after the last message of that worker
    std::function<bool()> has_work;                   // the worker holds requests or calls
    std::function<bool(const std::string& model_path)> wants_measurement;  // of what a prompt takes
    std::function<bool()> is_packing_elsewhere;       // another worker makes the weights file that this one will map
  };
  // `pool`: of its own KV pages; null: it keeps them to itself. `gauges` and `pool` outlive it.
  WorkerKeeper(Config config, WorkerSpec spec, HostPoolFile* pool, Metrics* metrics,
               WorkerGauges* gauges, const Clock* clock, Hooks hooks);

  void add_pollfds(std::vector<pollfd>* fds) const;
  void turn();                              // reads messages, reaps, starts what is due, watches
  int64_t next_wakeup_us() const;           // monotonic
  bool send(const ipc::ToWorker& message) override;
  void note_dispatch() override;
  void note_progress() override;
  void protocol_fault(const std::string& what) override;
  // New configuration. Worker settings are taken over where no worker runs on the old ones, and a
  // refused model is tried again.
  void reload(const Config& config);
  void set_log_level(const std::string& level);
  // Ends the worker and starts the next one at once; its requests go on there. `pid` 0: whichever
  // runs. False: no such worker.
  bool restart(int64_t pid);
  void stop();  // asks the worker to go; kills it when it hasn't after 2 s
  bool is_stopped() const { return state_ == WorkerState::kStopped && !process_; }

  ipc::Role role() const override { return spec_.role; }
  int number() const { return spec_.number; }
  WorkerState state() const override { return state_; }
  const std::string& cause() const override { return cause_; }
  const std::string& remedy() const { return remedy_; }
  const std::string& model_path() const { return path_; }
  const std::optional<ipc::ModelInfo>& model() const override { return model_; }
  const ipc::Heartbeat& heartbeat() const { return heartbeat_; }
  uint64_t generation() const override { return generation_; }
  int64_t n_restarts() const { return n_restarts_; }
  const std::string& last_end() const { return last_end_; }
  // It repacks the model's weights into a file for all, because there was none.
  bool is_packing() const;
  int64_t pid() const { return process_ ? process_->pid() : 0; }
  int64_t silence_us() const;  // since the ready worker's last heartbeat or, with work, progress
  // Why it runs on the processor though a device is wanted for it; empty: it runs where it is to.
  std::string device_trouble() const;
  int lives_without_progress() const { return policy_.lives_without_progress(); }

 private:
  // A set of weights in a file of its own, repacked: that of the model, or of weights.lean.
  struct StoredSet {
    WeightsCache cache;       // of process_
    std::string whole_stamp;  // of the file that was found whole, or the mark of an orderly stop
    bool is_trusted() const { return cache.existing.valid() && cache.stamp == whole_stamp; }
    bool is_being_made() const { return !cache.existing.valid() && cache.fresh.valid(); }
  };

  void try_start();
  Status start_process();
  Result<OpenModel> open_lean();
  void open_cache(StoredSet* set, const std::string& path, const OpenModel& model, const std::string& beside);
  void read_messages();
  void handle(ipc::FromWorker message);
  void handle_ready(ipc::Ready ready);
  void handle_pool_request(const ipc::PoolRequest& request);
  void handle_weights_cache(const ipc::WeightsCacheDone& done);
  void handle_heartbeat(const ipc::Heartbeat& beat);
  void handle_end(WorkerEnd end);
  void watch(int64_t now_us);
  void watch_device(int64_t now_us);
  Result<std::string> choose_program();
  void take_pending_config();
  void kill_as(const char* cause, const std::string& detail);
  void fail_start(WorkerState state, const Status& status, const std::string& remedy);

  Config config_;  // as the worker got it
  std::optional<Config>
      pending_config_;  // reloaded while a worker ran: taken over when a model is refused
  WorkerSpec spec_;
  HostPoolFile* const pool_;
  Metrics* metrics_;
  const Clock* clock_;
  Hooks hooks_;
  RestartPolicy policy_;
  DevicePolicy device_policy_;
  DeviceProbe device_probe_;
  WorkerCounters counters_;
  std::unique_ptr<WorkerProcess> process_;
  StoredSet full_, lean_;
  std::string cache_trouble_;   // as last told
  bool is_cache_suspect_ = false;
  WorkerState state_ = WorkerState::kBackoff;  // the first start is due at once
  std::string cause_ = "starting", remedy_, path_, refused_stamp_, last_end_;
  std::optional<ipc::ModelInfo> model_;
  std::optional<ipc::Fatal> fatal_;
  std::optional<WorkerEnd> forced_end_;  // why we killed it, told instead of SIGKILL
  ipc::Heartbeat heartbeat_;
  uint64_t generation_ = 0;
  int64_t n_restarts_ = 0;
  bool made_progress_ = false;
  int64_t start_at_us_ = 0;  // kBackoff, kNoModel, kRefused: when to look again
  int64_t ready_us_ = 0, last_sign_us_ = 0, last_progress_us_ = 0, last_turn_us_ = 0;
  int64_t channel_closed_us_ = 0, stop_us_ = 0;
};

}  // namespace tandem
