// The ends of requests: every path leads through finish(), once.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "supervisor/dispatcher.h"

namespace tandem {

using api::api_error;
using api::ApiError;
using api::StreamEvent;
using ipc::FinishReason;

namespace {
// A worker ends a request at its deadline by itself, with the text it still held; if not, we do.
constexpr int64_t kDeadlineGraceUs = 1'000'000;
constexpr int kDrainRetryAfterS = 5;
}  // namespace

ApiError Dispatcher::draining_error() {
  return api_error("draining", "the server is shutting down; try again shortly", "",
                   kDrainRetryAfterS);
}

void Dispatcher::end_normally(Request* r) {
  std::string outcome = normal_outcome(*r);
  StreamEvent end;
  end.kind = StreamEvent::Kind::kEnd;
  end.prompt_tokens = static_cast<int64_t>(r->in.prompt.size());
  end.completion_tokens = r->completion_tokens();
  end.cached_tokens = r->n_cached;
  end.timing = timing_of(*r, clock_->now_us());
  end.degraded = r->degraded;
  auto buffer = r->buffer;
  retry_after_.on_completion();
  finish(r, outcome, nullptr);  // the row first: who has read the end finds the counters risen
  buffer->push(std::move(end));
}

void Dispatcher::end_with_error(Request* r, const std::string& outcome, ApiError error) {
  StreamEvent event;
  event.kind = StreamEvent::Kind::kError;
  event.error = error;
  auto buffer = r->buffer;
  finish(r, outcome, &error);
  buffer->push(std::move(event));
}

void Dispatcher::end_abnormally(Lane* lane, Request* r, FinishReason reason, const std::string& text) {
  if (reason == FinishReason::kAborted)
    return end_with_error(
        r, "aborted",
        api_error("aborted", "the request was ended by a shutdown", "", kDrainRetryAfterS));
  if (reason == FinishReason::kFailed)
    return end_with_error(r, "failed",
                          api_error("worker_failed", text.empty() ? "the worker failed" : text));
  // Cancelled, and we didn't ask for it.
  lane->link->protocol_fault("a request was cancelled that nobody cancelled");
}

void Dispatcher::end_by_deadline(Request* r) {
  if (r->first_token_us == 0) {
    bool has_worker = can_serve(links_) || r->n_dispatches > 0;
    if (has_worker)
      return end_with_error(
          r, "deadline",
          api_error("deadline_exceeded", "the deadline came before the first token"));
    return end_with_error(
        r, "rejected",
        api_error("no_worker", "no worker was ready before the deadline: " + spokesman(links_).cause(), "",
                  retry_after_s()));
  }
  leave_workers(r, FinishReason::kDeadline);
  for (size_t i = 0; i < r->choices.size(); ++i) {
    if (r->choices[i].finish != FinishReason::kNone) continue;
    r->choices[i].finish = FinishReason::kDeadline;
    StreamEvent end;
    end.kind = StreamEvent::Kind::kChoiceEnd;
    end.choice = static_cast<uint32_t>(i);
    end.finish = FinishReason::kDeadline;
    end.reason = "deadline";
    end.timing = timing_of(*r, clock_->now_us());
    if (!deliver(r, std::move(end))) return;
  }
  end_normally(r);
}

// Takes it away from the workers, if it is at any.
void Dispatcher::leave_workers(Request* r, FinishReason reason) {
  if (r->wire_id == 0) return;
  bool is_lent = r->is_handed_over;
  ipc::ToWorker goodbye = ipc::Cancel{r->wire_id, reason};
  bool has_decoder_heard = r->prefiller < 0 || is_lent;  // then it knows of an end by itself
  if (!(r->is_finished() && has_decoder_heard) && !lanes_[r->decoder].link->send(goodbye))
    log_debug("cancel not sent",
              {{"request_id", r->in.id}});  // the worker is dying and takes it along
  if (is_lent) goodbye = ipc::Release{r->wire_id};
  leave_prefiller(r, goodbye);
  lanes_[r->decoder].gate.on_leave(r->id);
  r->decoder = -1;
  by_wire_.erase(r->wire_id);
  r->wire_id = 0;
  --n_at_worker_;
  quarantine_.on_take_back(r->id);
}

void Dispatcher::finish(Request* r, const std::string& outcome, const ApiError* error) {
  accounting_->account_ended(make_record(*r, outcome, error, model_name_, clock_->now_us()));
  leave_workers(r, FinishReason::kCancelled);
  queue_.remove(r->id);
  quarantine_.on_end(r->id);
  requests_.erase(r->id);
}

void Dispatcher::check_deadlines(int64_t now) {
  for (uint64_t id : queue_.take_expired()) end_by_deadline(requests_.at(id).get());
  if (now < next_check_us_) return;
  std::vector<Request*> overdue;
  for (auto& [id, r] : requests_) {
    if (r->wire_id != 0 && r->in.deadline_us > 0 && now > r->in.deadline_us + kDeadlineGraceUs)
      overdue.push_back(r.get());
  }
  for (Request* r : overdue) end_by_deadline(r);
}

void Dispatcher::cut_slow_readers(int64_t now) {
  std::vector<Request*> slow;
  for (auto& [id, r] : requests_) {
    if (r->buffer->stalled_us(now) > config_.server_slow_reader_timeout_ms * 1000)
      slow.push_back(r.get());
  }
  for (Request* r : slow) {
    log_warn("slow reader cut", {{"request_id", r->in.id}, {"reason", "timeout"}});
    metrics_->add(Metric::kStreamsCut, 1);
    ApiError error = api_error("client_gone", "the client did not read its stream");
    r->buffer->cut(error);
    finish(r, "cancelled", &error);
  }
}

void Dispatcher::abort_all() {
  std::vector<Request*> rest;
  for (auto& [id, r] : requests_) rest.push_back(r.get());
  for (Request* r : rest)
    end_with_error(
        r, "aborted",
        api_error("aborted", "the request was ended by a shutdown", "", kDrainRetryAfterS));
  for (auto& [id, call] : calls_) call->answer(draining_error());
  calls_.clear();
}

}  // namespace tandem
