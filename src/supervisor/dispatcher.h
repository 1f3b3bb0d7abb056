// From acceptance to the end of every request: checks limits, queues, sends to the worker, turns
// what comes back into events for the client, resumes after a worker's death, enforces deadlines,
// cuts slow readers. Each accepted request ends exactly once, in finish(). Confined to the
// supervisor's loop thread.
//
// DESIGN. A request runs at one worker of both roles, at a decode worker whose device computes prompts of its length
// sooner (prompt_placement.h), or is prefilled at one and decoded at another (dispatcher_handoff.cc): the prefill worker's pages are lent by index through here, chunk by
// chunk, then the decode worker gets the request with its first token, as a resume that needs no
// prompt computed. Both places are taken at dispatch. Whatever goes wrong at either (death, no pages,
// a bad loan) takes the request back from both and queues it again with the tokens it has: one way
// of recovery for all of it. leave_workers() is the only way out of the workers, so no loan and no
// place outlives it.
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
#include "supervisor/degradation.h"
#include "supervisor/history.h"
#include "supervisor/prompt_placement.h"
#include "supervisor/quarantine.h"
#include "supervisor/recent.h"
#include "supervisor/request.h"
#include "supervisor/status_json.h"
#include "supervisor/worker_call.h"
#include "supervisor/worker_link.h"
#include "supervisor/worker_process.h"

namespace tandem {

class Dispatcher {
 public:
  Dispatcher(const Config& config, Metrics* metrics, Accounting* accounting, const Clock* clock);
  void set_workers(std::vector<WorkerLink*> workers);  // once, before all else; at most 64
  void set_observers(History* history, Recent* recent, Degradation* degradation) {  // the same
    history_ = history;
    degradation_ = degradation;
    recent_ = recent;
  }

  void set_placement(const PromptPlacement* placement) { placement_ = placement; }  // the same; or never

  // Accepts the request (its id in *id) or says why not; then nothing of it is kept.
  std::optional<api::ApiError> accept(api::GenerateRequest request,
                                      std::shared_ptr<ResponseBuffer> buffer,
                                      const std::string& model_name, uint64_t* id);
  void cancel(uint64_t id);  // its reader has gone; unknown ids are ignored
  void add_call(std::shared_ptr<WorkerCall> call);
  void drop_call(const WorkerCall* call);  // nobody waits for it any more

  // `lane`: index of the worker in set_workers().
  void on_message(int lane, ipc::FromWorker message);
  void on_worker_end(int lane, const WorkerEnd& end);
  void turn();  // deadlines, slow readers, dispatch
  int64_t next_wakeup_us() const;
  void set_draining(bool is_draining) { is_draining_ = is_draining; }  // refuses new work
  void abort_all();  // the drain's time is up
  void reload(const Config& config);

  bool is_draining() const { return is_draining_; }
  bool is_empty() const { return requests_.empty() && calls_.empty(); }
  bool has_work_at(int lane) const;  // something on which it should make progress
  size_t n_running() const { return n_at_worker_; }
  bool is_queue_full() const { return queue_.size() >= static_cast<size_t>(config_.limits_max_queue); }
  double oldest_wait_s() const;  // 0: nobody waits
  size_t n_waiting(ipc::Priority priority) const { return queue_.waiting(priority); }
  std::vector<LiveRequest> live_requests() const;  // oldest first

 private:
  std::optional<api::ApiError> refusal(const api::GenerateRequest& request) const;
  std::optional<api::ApiError> hopeless() const;
  static api::ApiError draining_error();
  struct Lane {
    WorkerLink* link = nullptr;
    uint32_t source = 0;       // number among the prefill workers
    DispatchGate gate;         // of requests that are decoded there, or will be
    size_t n_prompts = 0;      // requests at a prefill worker
    size_t n_calls = 0;
    uint64_t weights_generation = 0;  // life of the worker that was told
    bool is_lean = false;             // to compute with the lean set
  };
  struct Route {
    int prefiller = -1, decoder = -1;
  };
  std::optional<api::ApiError> shed(const api::GenerateRequest& request);
  void degrade(Request* request) const;
  void order_weights();
  void dispatch_calls();
  int lane_for_call() const;
  void dispatch_requests();
  DispatchGate::Decision find_route(const Request& request, Route* route);
  int best_prefiller(const Request& request) const;
  bool is_device_prompt(const Request& request) const;
  bool dispatch(Request* request, Route route);
  void recall(Request* request);
  size_t places_at(const Lane& lane) const;      // that may be taken now
  size_t all_places_at(const Lane& lane) const;  // without the rung `batch`
  void mark_held_back(const Request& first);
  void on_token(Lane* lane, ipc::TokenEvent event);
  void on_prompt_progress(Lane* lane, const ipc::PromptProgress& progress);
  void on_prompt_logprobs(Lane* lane, ipc::PromptLogprobs message);
  template <typename Reply>
  void on_reply(Lane* lane, Reply reply);
  // dispatcher_handoff.cc
  void on_lent(int lane, ipc::Lent message);
  void lend_chunk(Request* request, ipc::Loan loan);
  void hand_over(Request* request, ipc::Loan loan);
  void on_import_done(int lane, uint64_t wire_id);
  void on_returned(int lane, const ipc::Returned& message);
  void leave_prefiller(Request* request, const ipc::ToWorker& goodbye);
  void take_back(Request* request);
  size_t n_places(const Request& request) const;
  std::optional<ipc::ModelInfo> model() const;
  bool deliver(Request* request, api::StreamEvent event);
  void observe(Request* request, const TokenEffect& effect);
  void end_normally(Request* request);
  void end_with_error(Request* request, const std::string& outcome, api::ApiError error);
  void end_by_deadline(Request* request);
  void end_abnormally(Lane* lane, Request* request, ipc::FinishReason reason, const std::string& error);
  void finish(Request* request, const std::string& outcome, const api::ApiError* error);
  void leave_workers(Request* request, ipc::FinishReason reason);
  void check_deadlines(int64_t now_us);
  void cut_slow_readers(int64_t now_us);
  WaitingRequest waiting_entry(const Request& request) const;
  Request* find_by_wire(uint64_t wire_id);
  int retry_after_s() const { return retry_after_.estimate_s(queue_.size()); }

  Config config_;
  Metrics* metrics_;
  Accounting* accounting_;
  const Clock* clock_;
  std::vector<Lane> lanes_;
  std::vector<WorkerLink*> links_;  // of lanes_
  History* history_ = nullptr;
  Recent* recent_ = nullptr;
  Degradation* degradation_ = nullptr;
  const PromptPlacement* placement_ = nullptr;
  AdmissionQueue queue_;
  RetryAfter retry_after_;
  Quarantine quarantine_;
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;
  std::unordered_map<uint64_t, uint64_t> by_wire_;         // wire id -> request id
  std::map<uint64_t, std::shared_ptr<WorkerCall>> calls_;  // in order of arrival
  uint64_t next_id_ = 1, next_wire_id_ = 1;
  size_t n_at_worker_ = 0;  // requests with a wire id
  std::string model_name_;
  int64_t next_check_us_ = 0;
  bool is_draining_ = false;
};

}  // namespace tandem
