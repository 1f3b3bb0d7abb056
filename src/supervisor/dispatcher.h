// From acceptance to the end of every request: checks limits, queues, sends to the worker, turns
// what comes back into events for the client, resumes after a worker's death, enforces deadlines,
// cuts slow readers. Each accepted request ends exactly once, in finish(). Confined to the
// supervisor's loop thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "admission/admission_queue.h"
#include "admission/dispatch_gate.h"
#include "admission/retry_after.h"
#include "api/service.h"
#include "base/clock.h"
#include "base/config.h"
#include "metrics/metrics.h"
#include "supervisor/accounting.h"
#include "supervisor/quarantine.h"
#include "supervisor/request.h"
#include "supervisor/status_json.h"
#include "supervisor/worker_call.h"
#include "supervisor/worker_keeper.h"

namespace tandem {

class Dispatcher {
 public:
  Dispatcher(const Config& config, Metrics* metrics, Accounting* accounting, const Clock* clock);
  void set_keeper(WorkerKeeper* keeper) { keeper_ = keeper; }  // once, before all else

  // Accepts the request (its id in *id) or says why not; then nothing of it is kept.
  std::optional<api::ApiError> accept(api::GenerateRequest request,
                                      std::shared_ptr<ResponseBuffer> buffer,
                                      const std::string& model_name, uint64_t* id);
  void cancel(uint64_t id);  // its reader has gone; unknown ids are ignored
  void add_call(std::shared_ptr<WorkerCall> call);
  void drop_call(const WorkerCall* call);  // nobody waits for it any more

  void on_message(ipc::FromWorker message);
  void on_worker_end(const WorkerEnd& end);
  void turn();  // deadlines, slow readers, dispatch
  int64_t next_wakeup_us() const;
  void start_drain() { is_draining_ = true; }
  void abort_all();  // the drain's time is up
  void reload(const Config& config);

  bool is_draining() const { return is_draining_; }
  bool is_empty() const { return requests_.empty() && calls_.empty(); }
  bool has_work_at_worker() const { return n_at_worker_ > 0 || n_calls_at_worker_ > 0; }
  size_t n_running() const { return n_at_worker_; }
  size_t n_waiting(ipc::Priority priority) const { return queue_.waiting(priority); }
  std::vector<LiveRequest> live_requests() const;  // oldest first

 private:
  std::optional<api::ApiError> refusal(const api::GenerateRequest& request) const;
  std::optional<api::ApiError> hopeless() const;
  static api::ApiError draining_error();
  void dispatch_calls();
  void dispatch_requests();
  bool dispatch(Request* request);
  void recall(Request* request);
  size_t places_at_worker() const;
  void on_token(ipc::TokenEvent event);
  void on_prompt_progress(const ipc::PromptProgress& progress);
  void on_prompt_logprobs(ipc::PromptLogprobs message);
  template <typename Reply>
  void on_reply(Reply reply);
  bool deliver(Request* request, api::StreamEvent event);
  void observe(Request* request, const TokenEffect& effect);
  void end_normally(Request* request);
  void end_with_error(Request* request, const std::string& outcome, api::ApiError error);
  void end_by_deadline(Request* request);
  void end_abnormally(Request* request, ipc::FinishReason reason, const std::string& error);
  void finish(Request* request, const std::string& outcome, const api::ApiError* error);
  void leave_worker(Request* request, ipc::FinishReason reason);
  void check_deadlines(int64_t now_us);
  void cut_slow_readers(int64_t now_us);
  WaitingRequest waiting_entry(const Request& request) const;
  Request* find_by_wire(uint64_t wire_id);
  int retry_after_s() const { return retry_after_.estimate_s(queue_.size()); }

  Config config_;
  Metrics* metrics_;
  Accounting* accounting_;
  const Clock* clock_;
  WorkerKeeper* keeper_ = nullptr;
  AdmissionQueue queue_;
  DispatchGate gate_;
  RetryAfter retry_after_;
  Quarantine quarantine_;
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;
  std::unordered_map<uint64_t, uint64_t> by_wire_;         // wire id -> request id
  std::map<uint64_t, std::shared_ptr<WorkerCall>> calls_;  // in order of arrival
  uint64_t next_id_ = 1, next_wire_id_ = 1;
  size_t n_at_worker_ = 0, n_calls_at_worker_ = 0;
  std::string model_name_;
  int64_t next_check_us_ = 0;
  bool is_draining_ = false;
};

}  // namespace tandem
