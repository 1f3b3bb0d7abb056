// tandemd's heart: the loop thread that owns workers and requests, and the InferenceService through
// which connection threads reach it. They hand work over by the inbox and wait for answers; what
// they only look at (readiness, model, status) is a copy published by the loop, so that probes
// never wait for anything.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "api/service.h"
#include "base/clock.h"
#include "base/config.h"
#include "metrics/metrics.h"
#include "requestlog/request_log.h"
#include "supervisor/accounting.h"
#include "supervisor/degradation.h"
#include "supervisor/dispatcher.h"
#include "supervisor/fleet.h"
#include "supervisor/history.h"
#include "supervisor/host_sensors.h"
#include "supervisor/inbox.h"
#include "supervisor/model_digest.h"
#include "supervisor/recent.h"
#include "supervisor/status_json.h"

namespace tandem {

class Supervisor : public api::InferenceService {
 public:
  // `log` must outlive it. A ladder without rungs degrades nothing.
  Supervisor(const Config& config, RequestLog* log, Ladder ladder = {});
  ~Supervisor() override;

  struct LoopHooks {
    int signal_fd = -1;                                  // watched; read by on_signal
    std::function<void()> on_signal;                     // loop thread
    std::function<void(const api::Readiness&)> on_turn;  // loop thread, a few times a second
    std::function<Status()> on_reload;                   // loop thread: /admin/reload
  };
  // The loop; the caller's thread becomes the loop thread. Returns when a drain is over and the
  // worker gone.
  void run(LoopHooks hooks);
  // Thread-safe. Stops admitting, finishes what runs until workers.drain_timeout_ms, aborts the
  // rest.
  void drain();
  // Thread-safe. Takes over what can change while running; returns at once.
  void reload(const Config& config, Ladder ladder);

  // Thread-safe. Shown on the status page among the faults.
  void note_fault(std::string what, std::string action) {
    recent_.add_fault(std::move(what), std::move(action), utc_us());
  }

  // InferenceService: thread-safe.
  api::Readiness readiness() override;
  std::optional<ipc::ModelInfo> model() override;
  std::string model_name() override;
  int64_t model_created() override;
  api::ApiResult<api::PrepareOutcome> prepare(ipc::Prepare request,
                                              const api::CallLimits& limits) override;
  api::ApiResult<std::string> detokenize(std::vector<int32_t> ids,
                                         const api::CallLimits& limits) override;
  api::ApiResult<std::unique_ptr<api::ResponseStream>> submit(
      api::GenerateRequest request) override;
  void record_rejected(ipc::RequestRecord record) override;
  std::string metrics_text() override;
  std::string status_json() override;
  std::string config_text() override;
  api::ApiResult<std::string> admin(const api::AdminCommand& command) override;
  api::ApiResult<std::vector<ipc::RequestRecord>> query_log(const ipc::RecordQuery& query) override;
  const Metrics& metrics() const { return metrics_; }

 private:
  void poll_once(const LoopHooks& hooks);
  void turn_drain(int64_t now_us);
  void publish(int64_t now_us);
  api::Readiness compute_readiness() const;
  WorkerCall::Answer call_worker(std::shared_ptr<WorkerCall> call, const api::CallLimits& limits);
  StatusView view() const;
  StatusView whole_view() const;
  void note_worker_end(int lane);
  bool restart_workers(int64_t pid);
  void export_readiness(api::Readiness::State state);
  void export_host();
  void turn_degradation(int64_t now_us);
  api::ApiResult<std::string> administer(const api::AdminCommand& command);
  template <typename T>
  std::optional<T> ask_loop(std::function<T()> question, std::chrono::milliseconds wait) const;

  Clock clock_;
  Metrics metrics_;
  RequestLog* log_;
  Recent recent_;
  History history_;  // loop thread
  Accounting accounting_;
  Config config_;          // loop thread
  Degradation degradation_;  // loop thread
  PromptPlacement placement_;  // loop thread
  Dispatcher dispatcher_;  // loop thread
  Fleet fleet_;            // loop thread
  ModelDigest digest_;     // loop thread
  std::shared_ptr<Inbox> inbox_;
  HostSensors sensors_;
  std::function<Status()> on_reload_;  // loop thread
  bool is_drained_by_admin_ = false;   // loop thread
  bool had_log_problem_ = false;       // loop thread
  int64_t started_us_;
  int64_t drain_until_us_ = 0;  // loop thread; 0: not draining
  int64_t next_publish_us_ = 0;
  int64_t next_slow_look_us_ = 0;
  WorkerState published_state_ = WorkerState::kStopped;
  mutable std::mutex mutex_;  // guards view_
  StatusView view_;
};

}  // namespace tandem
