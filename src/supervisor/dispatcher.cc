// Acceptance, dispatch and what the worker says. How requests end is in dispatcher_ends.cc.
#include "supervisor/dispatcher.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"

namespace tandem {

using api::api_error;
using api::ApiError;
using api::StreamEvent;
using ipc::FinishReason;

namespace {

constexpr size_t kExtraSequences =
    2;  // beyond the batch, so that a finished one is replaced at once
constexpr size_t kMaxCallsAtWorker = 64;  // its I/O thread answers them one after the other
constexpr size_t kAffinityTokens = 64;    // what tells one system prompt from another
constexpr int64_t kCheckUs = 200'000;  // slow readers and overdue deadlines are looked at so often

AdmissionLimits limits_of(const Config& config) {
  return {static_cast<size_t>(config.limits_max_queue), config.limits_ageing_ms * 1000};
}

const char* prompt_param(const api::GenerateRequest& request) {
  return request.endpoint == "chat" ? "messages" : "prompt";
}

}  // namespace

Dispatcher::Dispatcher(const Config& config, Metrics* metrics, Accounting* accounting,
                       const Clock* clock)
    : config_(config),
      metrics_(metrics),
      accounting_(accounting),
      clock_(clock),
      queue_(limits_of(config), clock),
      retry_after_(clock) {}

void Dispatcher::set_workers(std::vector<WorkerLink*> workers) {
  CHECK(!workers.empty() && workers.size() <= 64);
  uint32_t n_prefill = 0;
  for (WorkerLink* link : workers) {
    lanes_.emplace_back().link = link;
    if (link->role() == ipc::Role::kPrefill) lanes_.back().source = n_prefill++;
  }
  links_ = std::move(workers);
}

// --- acceptance ---

// What any request can count on, wherever it runs: none before the first workers were ready.
std::optional<ipc::ModelInfo> Dispatcher::model() const {
  std::optional<ipc::ModelInfo> least;
  for (const WorkerLink* link : links_) {
    if (!link->model()) continue;
    if (!least) least = link->model();
    least->context_tokens = std::min(least->context_tokens, link->model()->context_tokens);
    least->pool_tokens = std::min(least->pool_tokens, link->model()->pool_tokens);
  }
  return least;
}

// No worker will come without somebody's doing: waiting for one would only be a late refusal.
std::optional<ApiError> Dispatcher::hopeless() const {
  if (is_draining_) return draining_error();
  const WorkerLink& worker = spokesman(links_);
  if (worker.state() != WorkerState::kNoModel && worker.state() != WorkerState::kRefused)
    return std::nullopt;
  return api_error("no_worker", "no model is served: " + worker.cause(), "",
                   RetryAfter::kUnknownSeconds);
}

std::optional<ApiError> Dispatcher::refusal(const api::GenerateRequest& request) const {
  if (auto error = hopeless()) return error;
  const std::optional<ipc::ModelInfo> known = this->model();
  if (!known)
    return api_error("no_worker", "no worker is ready: " + spokesman(links_).cause(), "",
                     RetryAfter::kUnknownSeconds);
  const ipc::ModelInfo& model = *known;
  auto n_prompt = static_cast<int64_t>(request.prompt.size());
  int64_t wanted = std::max<int64_t>(1, request.max_tokens.value_or(1));
  std::string counts = "the prompt has " + std::to_string(n_prompt) + " tokens";
  if (n_prompt + wanted > model.context_tokens) {
    if (request.max_tokens.value_or(0) > 1 && n_prompt + 1 <= model.context_tokens)
      counts += " and max_tokens is " + std::to_string(wanted) + ", together " +
                std::to_string(n_prompt + wanted);
    else
      counts += " and at least 1 is generated";
    return api_error("context_length_exceeded",
                     counts + "; the context is " + std::to_string(model.context_tokens) +
                         " tokens. Shorten the prompt or lower max_tokens",
                     prompt_param(request));
  }
  if (config_.limits_max_prompt_tokens > 0 && n_prompt > config_.limits_max_prompt_tokens)
    return api_error("prompt_too_long",
                     counts + "; at most " + std::to_string(config_.limits_max_prompt_tokens) +
                         " are allowed (limits.max_prompt_tokens)",
                     prompt_param(request));
  if (n_prompt + 1 > model.pool_tokens)
    return api_error("kv_pool_exceeded",
                     counts + "; with one more it needs " + std::to_string(n_prompt + 1) +
                         " tokens of the KV pool, which holds " +
                         std::to_string(model.pool_tokens) + " (cache.kv_pool_bytes)",
                     prompt_param(request));
  return std::nullopt;
}

// The rung shed: low priority first, normal too if that was not enough; high is served.
std::optional<ApiError> Dispatcher::shed(const api::GenerateRequest& request) {
  const DegradePolicy& policy = degradation_->policy();
  bool is_shed = request.priority == ipc::Priority::kLow ||
                 (request.priority == ipc::Priority::kNormal && policy.sheds_normal());
  if (!policy.is_active(RungKind::kShed) || !is_shed) return std::nullopt;
  metrics_->add(Metric::kRequestsDegraded, 1, {rung_name(RungKind::kShed)});
  return api_error("overloaded", std::string("the server is overloaded and serves no requests of priority ") +
                                     priority_name(request.priority) + " just now; try again later",
                   "", retry_after_s());
}

// What the active rungs change of a request, once, when it is accepted: a reply is not changed on its way.
void Dispatcher::degrade(Request* r) const {
  const DegradePolicy& policy = degradation_->policy();
  bool wants_logprobs = r->in.sampling.n_top_logprobs >= 0 || r->in.prompt_logprobs;
  if (policy.is_active(RungKind::kLogprobs) && wants_logprobs) {
    r->in.sampling.n_top_logprobs = -1;
    r->in.prompt_logprobs = false;
    mark_degraded(r, rung_name(RungKind::kLogprobs));
  }
  int64_t cap = policy.max_tokens();
  if (cap > 0 && r->in.priority == ipc::Priority::kLow && r->max_tokens > cap) {
    r->max_tokens = static_cast<uint32_t>(cap);
    r->is_capped = true;  // the mark comes with the end, if the cap is what ended it
  }
}

WaitingRequest Dispatcher::waiting_entry(const Request& r) const {
  return {r.id,          r.in.priority, r.in.client,      r.in.received_us,
          r.in.deadline_us, r.waited_us,   clock_->now_us(), static_cast<int64_t>(r.in.prompt.size())};
}

std::optional<ApiError> Dispatcher::accept(api::GenerateRequest in,
                                           std::shared_ptr<ResponseBuffer> buffer,
                                           const std::string& model_name, uint64_t* id) {
  CHECK(in.n_choices >= 1);
  if (auto error = refusal(in)) return error;
  if (auto error = shed(in)) return error;
  auto request = std::make_unique<Request>();
  Request& r = *request;
  r.id = next_id_++;
  r.received_utc_us = utc_us() - (clock_->now_us() - in.received_us);
  r.context_tokens = model()->context_tokens;
  r.max_tokens = in.max_tokens.value_or(static_cast<uint32_t>(r.context_tokens) -
                                        static_cast<uint32_t>(in.prompt.size()));
  r.choices.resize(static_cast<size_t>(in.n_choices));
  r.buffer = std::move(buffer);
  r.in = std::move(in);
  degrade(&r);
  Offer offer = queue_.offer(waiting_entry(r));
  if (!offer.is_accepted)
    return api_error("queue_full",
                     "all " + std::to_string(config_.limits_max_queue) +
                         " places of the queue are taken; try again later",
                     "", retry_after_s());
  model_name_ = model_name;
  *id = r.id;
  requests_[r.id] = std::move(request);
  if (offer.displaced)
    end_with_error(
        requests_.at(*offer.displaced).get(), "rejected",
        api_error("overloaded", "displaced from the full queue by a request of higher priority", "",
                  retry_after_s()));
  return std::nullopt;
}

void Dispatcher::cancel(uint64_t id) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return;
  ApiError error = api_error("client_gone", "the client closed the connection");
  finish(it->second.get(), "cancelled", &error);
}

void Dispatcher::add_call(std::shared_ptr<WorkerCall> call) {
  if (auto error = hopeless()) return call->answer(*error);
  call->id = next_id_++;
  calls_[call->id] = std::move(call);
}

void Dispatcher::drop_call(const WorkerCall* call) {
  auto it = calls_.find(call->id);
  if (it == calls_.end()) return;
  if (it->second->lane >= 0) --lanes_[it->second->lane].n_calls;
  quarantine_.on_end(it->first);
  calls_.erase(it);
}

// --- dispatch ---

void Dispatcher::turn() {
  int64_t now = clock_->now_us();
  check_deadlines(now);
  retry_after_.set_busy(!requests_.empty());
  if (now >= next_check_us_) {
    next_check_us_ = now + kCheckUs;
    cut_slow_readers(now);
    if (auto error = hopeless(); error && !is_draining_) {
      for (auto& [id, call] : calls_) call->answer(*error);
      calls_.clear();
    }
  }
  order_weights();
  dispatch_calls();
  dispatch_requests();
  for (ipc::Priority p : {ipc::Priority::kHigh, ipc::Priority::kNormal, ipc::Priority::kLow})
    metrics_->set(Metric::kRequestsWaiting, static_cast<double>(queue_.waiting(p)),
                  {priority_name(p)});
  metrics_->set(Metric::kRequestsRunning, static_cast<double>(n_at_worker_));
}

int64_t Dispatcher::next_wakeup_us() const {
  int64_t at = requests_.empty() ? INT64_MAX : next_check_us_;
  return std::min(at, queue_.next_deadline_us().value_or(INT64_MAX));
}

// The rung weights-4bit, to each worker that has a lean set, before anything is dispatched to it.
void Dispatcher::order_weights() {
  bool is_wanted = degradation_->policy().is_active(RungKind::kWeights4bit);
  for (Lane& lane : lanes_) {
    if (!is_ready(*lane.link) || !lane.link->model() || !lane.link->model()->no_lean_reason.empty()) continue;
    if (lane.weights_generation != lane.link->generation()) {  // a new life begins with the full set
      lane.weights_generation = lane.link->generation();
      lane.is_lean = false;
    }
    if (lane.is_lean != is_wanted && lane.link->send(ipc::SetWeights{is_wanted})) lane.is_lean = is_wanted;
  }
}

// The least busy worker, those that decode last: tokenizing takes a core for a moment.
int Dispatcher::lane_for_call() const {
  int best = -1;
  auto cost = [&](const Lane& lane) {
    return lane.n_calls + (lane.link->role() == ipc::Role::kDecode ? kMaxCallsAtWorker : 0);
  };
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (!is_ready(*lanes_[i].link) || lanes_[i].n_calls >= kMaxCallsAtWorker) continue;
    if (best < 0 || cost(lanes_[i]) < cost(lanes_[best])) best = static_cast<int>(i);
  }
  return best;
}

void Dispatcher::dispatch_calls() {
  for (auto& [id, call] : calls_) {
    if (call->lane >= 0 || !quarantine_.may_dispatch(id)) continue;
    int number = lane_for_call();
    if (number < 0) return;
    Lane& lane = lanes_[number];
    lane.link->note_dispatch();
    std::visit([id = id](auto& question) { question.id = id; }, call->question);
    bool is_sent = std::visit([&](const auto& question) { return lane.link->send(question); },
                              call->question);
    if (!is_sent) return;
    call->lane = number;
    ++lane.n_calls;
    quarantine_.on_dispatch(id, number);
  }
}

size_t Dispatcher::n_places(const Request& r) const { return r.n_unfinished(); }

// Batches that nobody joins need the whole next one at hand when they end.
size_t Dispatcher::all_places_at(const Lane& lane) const {
  auto batch = static_cast<size_t>(std::max(1, lane.link->model()->max_batch_size));
  return config_.batch_batching == "continuous" ? batch + kExtraSequences : 2 * batch;
}

size_t Dispatcher::places_at(const Lane& lane) const {
  const BatchLimit& limit = degradation_->batch_limit();
  if (!limit.is_limiting()) return all_places_at(lane);
  return limit.apply(static_cast<size_t>(std::max(1, lane.link->model()->max_batch_size)));
}

// Who waits now though the worker has a place that the rung `batch` keeps free is touched by it, and so are those behind.
void Dispatcher::mark_held_back(const Request& first) {
  if (!degradation_->batch_limit().is_limiting()) return;
  const bool has_place = std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    return lane.link->role() != ipc::Role::kPrefill && is_ready(*lane.link) &&
           lane.gate.n_sequences() + n_places(first) <= all_places_at(lane);
  });
  if (!has_place) return;
  for (auto& [id, r] : requests_) {
    if (r->wire_id != 0 || r->is_held_back) continue;
    r->is_held_back = true;
    r->degraded.push_back(rung_name(RungKind::kBatch));
  }
}

// The least busy one; among those nearly as free, the one that prompts with this beginning go to, as it has their
// pages.
int Dispatcher::best_prefiller(const Request& r) const {
  std::vector<int> ready;
  size_t least = SIZE_MAX;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (lane.link->role() != ipc::Role::kPrefill || !is_ready(*lane.link) || lane.n_prompts >= places_at(lane)) continue;
    ready.push_back(static_cast<int>(i));
    least = std::min(least, lane.n_prompts);
  }
  if (ready.empty()) return -1;
  const size_t n_bytes = std::min(r.in.prompt.size(), kAffinityTokens) * sizeof(r.in.prompt[0]);
  const size_t hash = std::hash<std::string_view>{}({reinterpret_cast<const char*>(r.in.prompt.data()), n_bytes});
  for (size_t k = 0; k < ready.size(); ++k) {
    int lane = ready[(hash + k) % ready.size()];
    if (lanes_[lane].n_prompts <= least + 1) return lane;
  }
  return ready[0];
}

bool Dispatcher::is_device_prompt(const Request& r) const {
  if (r.n_dispatches > 0) return r.is_device_prompt;  // the place that computed it first
  return placement_ != nullptr && placement_->is_for_device(r.in.prompt.size());
}

// The least busy workers that have room; without any, one that gets it by a recall.
DispatchGate::Decision Dispatcher::find_route(const Request& r, Route* route) {
  using Verdict = DispatchGate::Verdict;
  DispatchGate::Decision best;
  int prefiller = best_prefiller(r);
  const bool is_device_prompt = this->is_device_prompt(r);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    ipc::Role role = lane.link->role();
    if (role == ipc::Role::kPrefill || !is_ready(*lane.link)) continue;
    const bool needs_prefiller = role == ipc::Role::kDecode && !(is_device_prompt && lane.link->model()->device == "gpu");
    if (needs_prefiller && prefiller < 0) continue;
    lane.gate.set_limit(places_at(lane));
    DispatchGate::Decision d = lane.gate.ask(static_cast<int>(r.in.priority), n_places(r));
    if (d.verdict == Verdict::kWait || (d.verdict == Verdict::kRecall && best.verdict != Verdict::kWait)) continue;
    if (best.verdict == Verdict::kDispatch && lanes_[route->decoder].gate.n_sequences() <= lane.gate.n_sequences()) continue;
    best = d;
    *route = {needs_prefiller ? prefiller : -1, static_cast<int>(i)};
  }
  return best;
}

void Dispatcher::dispatch_requests() {
  if (!can_serve(links_)) return;
  while (auto id = queue_.next([&](uint64_t i) { return quarantine_.may_dispatch(i); })) {
    Request* r = requests_.at(*id).get();
    // What comes first waits for its room: letting smaller ones past would starve a request of many
    // choices.
    Route route;
    DispatchGate::Decision d = find_route(*r, &route);
    if (d.verdict == DispatchGate::Verdict::kWait) return mark_held_back(*r);
    if (d.verdict == DispatchGate::Verdict::kRecall) recall(requests_.at(d.recall).get());
    else if (!dispatch(r, route)) return;
  }
}

bool Dispatcher::dispatch(Request* r, Route route) {
  int first = route.prefiller >= 0 ? route.prefiller : route.decoder;
  WorkerLink* link = lanes_[first].link;
  link->note_dispatch();
  r->wire_id = next_wire_id_++;
  ipc::Submit submit = make_submit(*r);
  submit.waited_us = r->waited_us + queue_.waiting_us(r->id);
  if (!link->send(submit)) {  // its worker is dying: stays where it is
    r->wire_id = 0;
    return false;
  }
  WaitingRequest taken = queue_.take(r->id);
  r->waited_us = taken.waited_us;
  by_wire_[r->wire_id] = r->id;
  if (r->n_dispatches++ > 0 && !r->is_recalled) metrics_->add(Metric::kResumes, 1);
  r->is_recalled = false;
  if (r->dispatched_us == 0) r->dispatched_us = clock_->now_us();
  r->worker_generation = link->generation();
  if (r->n_dispatches == 1) r->is_device_prompt = route.prefiller < 0 && link->role() == ipc::Role::kDecode;
  r->prefiller = route.prefiller, r->decoder = route.decoder;
  r->is_handed_over = false;
  ++n_at_worker_;
  if (r->prefiller >= 0) ++lanes_[r->prefiller].n_prompts;
  lanes_[r->decoder].gate.on_dispatch(r->id, queue_.effective_class(taken), n_places(*r));
  quarantine_.on_dispatch(r->id, first);
  log_debug("request dispatched", {{"request_id", r->in.id},
                                   {"generation", r->worker_generation},
                                   {"tokens_so_far", r->completion_tokens()}});
  return true;
}

// Makes room for a higher class: it goes on later, from its tokens so far.
void Dispatcher::recall(Request* r) {
  log_debug("request recalled", {{"request_id", r->in.id}, {"tokens_so_far", r->completion_tokens()}});
  r->is_recalled = true;
  metrics_->add(Metric::kPreemptions, 1, {"dispatch"});
  take_back(r);
}

bool Dispatcher::has_work_at(int lane) const {
  if (lanes_[lane].n_calls > 0) return true;
  bool is_prefill = lanes_[lane].link->role() == ipc::Role::kPrefill;
  for (const auto& [id, r] : requests_) {
    if (r->wire_id == 0 || (is_prefill ? r->prefiller : r->decoder) != lane) continue;
    if (r->prefiller < 0 || r->is_handed_over != is_prefill) return true;
  }
  return false;
}

// --- what the worker says ---

void Dispatcher::on_message(int number, ipc::FromWorker message) {
  Lane* lane = &lanes_[number];
  if (auto* tokens = std::get_if<ipc::TokenEvents>(&message)) {
    for (ipc::TokenEvent& event : tokens->events) on_token(lane, std::move(event));
  } else if (auto* progress = std::get_if<ipc::PromptProgress>(&message)) {
    on_prompt_progress(lane, *progress);
  } else if (auto* logprobs = std::get_if<ipc::PromptLogprobs>(&message)) {
    on_prompt_logprobs(lane, std::move(*logprobs));
  } else if (auto* prepared = std::get_if<ipc::PrepareReply>(&message)) {
    on_reply(lane, std::move(*prepared));
  } else if (auto* text = std::get_if<ipc::DetokenizeReply>(&message)) {
    on_reply(lane, std::move(*text));
  } else if (auto* lent = std::get_if<ipc::Lent>(&message)) {
    on_lent(number, std::move(*lent));
  } else if (auto* done = std::get_if<ipc::ImportDone>(&message)) {
    on_import_done(number, done->id);
  } else if (auto* returned = std::get_if<ipc::Returned>(&message)) {
    on_returned(number, *returned);
  }
}

Request* Dispatcher::find_by_wire(uint64_t wire_id) {
  auto it = by_wire_.find(wire_id);  // not there: it ended meanwhile, the worker will learn of it
  return it == by_wire_.end() ? nullptr : requests_.at(it->second).get();
}

template <typename Reply>
void Dispatcher::on_reply(Lane* lane, Reply reply) {
  lane->link->note_progress();
  auto it = calls_.find(reply.id);
  if (it == calls_.end()) return;
  it->second->answer(std::move(reply));
  drop_call(it->second.get());
}

void Dispatcher::on_prompt_progress(Lane* lane, const ipc::PromptProgress& progress) {
  Request* r = find_by_wire(progress.id);
  if (r == nullptr) return;
  lane->link->note_progress();
  if (Status status = apply_prompt_progress(r, progress); !status.ok()) return lane->link->protocol_fault(status.message());
  quarantine_.on_progress(r->id, progress.n_done > r->n_prompt_done);
  r->n_prompt_done = std::max(r->n_prompt_done, progress.n_done);
  if (r->n_dispatches == 1)
    r->n_cached = std::min(progress.n_cached, static_cast<uint32_t>(r->in.prompt.size()));
  if (progress.n_done >= progress.n_total && r->prompt_done_us == 0)
    r->prompt_done_us = clock_->now_us();
}

void Dispatcher::on_prompt_logprobs(Lane* lane, ipc::PromptLogprobs message) {
  Request* r = find_by_wire(message.id);
  if (r == nullptr) return;
  auto fresh = apply_prompt_logprobs(r, std::move(message));
  if (!fresh.ok()) return lane->link->protocol_fault(fresh.status().message());
  if (fresh->empty()) return;
  StreamEvent event;
  event.kind = StreamEvent::Kind::kPromptLogprobs;
  event.logprobs = std::move(*fresh);
  deliver(r, std::move(event));
}

void Dispatcher::on_token(Lane* lane, ipc::TokenEvent event) {
  Request* r = find_by_wire(event.id);
  if (r == nullptr) return;
  std::string error = event.error;
  bool is_first_choice = event.choice == 0;
  size_t n_unfinished = r->n_unfinished();
  auto effect = apply_token_event(r, std::move(event), clock_->now_us());
  if (!effect.ok()) return lane->link->protocol_fault(effect.status().message());
  lanes_[r->decoder].gate.on_choice_end(r->id, n_unfinished - r->n_unfinished());
  lane->link->note_progress();
  observe(r, *effect);
  if (effect->is_late_deadline) return end_by_deadline(r);
  if (effect->abnormal != FinishReason::kNone) return end_abnormally(lane, r, effect->abnormal, error);
  for (StreamEvent& out : effect->events) {
    if (config_.log_text && is_first_choice) r->completion_text += out.text;
    if (!deliver(r, std::move(out))) return;
  }
  if (r->is_finished()) end_normally(r);
}

void Dispatcher::observe(Request* r, const TokenEffect& effect) {
  if (effect.is_new_token) queue_.charge(r->in.client, r->in.priority, 1);
  quarantine_.on_progress(r->id, true);
  if (effect.is_new_token) history_->note_token();
  if (effect.gap_s) {
    metrics_->observe(Metric::kInterTokenLatency, *effect.gap_s);
    history_->note_gap(*effect.gap_s);
    degradation_->note_token_gap(*effect.gap_s);
  }
  if (effect.is_new_token && r->completion_tokens() == 1) {
    double ttft_s = static_cast<double>(r->first_token_us - r->in.received_us) / 1e6;
    metrics_->observe(Metric::kTimeToFirstToken, ttft_s);
    history_->note_first_token(ttft_s);
  }
}

// False: the reader is too slow, the request has ended.
bool Dispatcher::deliver(Request* r, StreamEvent event) {
  r->is_reply_begun = true;
  if (event.kind == StreamEvent::Kind::kChoiceEnd && event.reason == "degraded") mark_degraded(r, rung_name(RungKind::kTokens));
  event.degraded = r->degraded;
  if (r->buffer->push(std::move(event))) return true;
  log_warn("slow reader cut", {{"request_id", r->in.id}, {"reason", "backlog"}});
  metrics_->add(Metric::kStreamsCut, 1);
  ApiError error = api_error("client_gone", "the client did not read its stream");
  r->buffer->cut(error);
  finish(r, "cancelled", &error);
  return false;
}

void Dispatcher::on_worker_end(int lane, const WorkerEnd& end) {
  std::vector<uint64_t> convicted = quarantine_.on_worker_end(end.is_own_fault, lane);
  for (auto& [id, r] : requests_) {
    if (r->wire_id != 0 && (r->prefiller == lane || r->decoder == lane)) take_back(r.get());
  }
  for (auto& [id, call] : calls_) {
    if (call->lane == lane) call->lane = -1;
  }
  CHECK(lanes_[lane].gate.n_requests() == 0 && lanes_[lane].n_prompts == 0);
  lanes_[lane].n_calls = 0;
  for (uint64_t id : convicted) {
    metrics_->add(Metric::kQuarantined, 1);
    recent_->add_fault("a request ended its worker each time it ran (" + end.detail + ")",
                       "refused with 500 and not tried again", utc_us());
    ApiError error = api_error("request_quarantined",
                               "this request ended its worker each time it ran, last time alone (" +
                                   end.detail + "); it is not tried again");
    if (auto r = requests_.find(id); r != requests_.end()) {
      log_error("request quarantined", {{"request_id", r->second->in.id}, {"detail", end.detail}});
      end_with_error(r->second.get(), "failed", error);
    } else if (auto call = calls_.find(id); call != calls_.end()) {
      log_error("call quarantined", {{"detail", end.detail}});
      call->second->answer(error);
      drop_call(call->second.get());
    }
  }
}

double Dispatcher::oldest_wait_s() const {
  auto since = queue_.oldest_since_us();
  return since ? static_cast<double>(clock_->now_us() - *since) / 1e6 : 0;
}

std::vector<LiveRequest> Dispatcher::live_requests() const {
  std::vector<const Request*> sorted;
  for (const auto& [id, r] : requests_) sorted.push_back(r.get());
  std::sort(sorted.begin(), sorted.end(),
            [](const Request* a, const Request* b) { return a->id < b->id; });
  std::vector<LiveRequest> live;
  for (const Request* r : sorted) {
    const char* phase = r->wire_id == 0 ? "queued" : r->first_token_us == 0 ? "prefill" : "decode";
    live.push_back({r->in.id, phase, priority_name(r->in.priority),
                    (clock_->now_us() - r->in.received_us) / 1000,
                    static_cast<int64_t>(r->in.prompt.size()), r->completion_tokens(),
                    r->n_dispatches});
  }
  return live;
}

void Dispatcher::reload(const Config& config) {
  config_ = config;
  queue_.set_limits(limits_of(config));
}

}  // namespace tandem
