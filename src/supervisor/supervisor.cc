#include "supervisor/supervisor.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <limits>
#include <utility>

#include "base/log.h"
#include "supervisor/box_facts.h"
#include "supervisor/model_files.h"
#include "supervisor/response_stream.h"

namespace tandem {

using api::api_error;
using api::ApiError;
using api::Readiness;

namespace {

constexpr int64_t kPublishUs = 100'000;
constexpr int64_t kMaxPollUs = 250'000;
constexpr int64_t kLoopDeadUs = 5'000'000;  // the loop publishes several times a second
constexpr int64_t kSlowLookUs = 1'000'000;
constexpr int kFailedLives = 3;  // lives without progress in a row: dead, no longer warming
constexpr auto kStatusWait = std::chrono::milliseconds(200);  // then the published copy is shown
constexpr auto kAdminWait = std::chrono::milliseconds(5000);
constexpr auto kLookAround =
    std::chrono::milliseconds(50);  // how often a waiting call looks for its client

ApiError stopped_error() {
  return api_error("draining", "the server is shutting down; try again shortly", "", 5);
}

}  // namespace

Supervisor::Supervisor(const Config& config, RequestLog* log, Ladder ladder)
    : log_(log),
      accounting_(&metrics_, log, &recent_),
      config_(config),
      degradation_(std::move(ladder), &metrics_),
      placement_(config.prefill_placement == "auto" ? config_cache_dir(config) : ""),
      dispatcher_(config, &metrics_, &accounting_, &clock_),
      fleet_(config, &metrics_, &clock_,
             {[this](int lane, ipc::FromWorker m) { dispatcher_.on_message(lane, std::move(m)); },
              [this](int lane, const WorkerEnd& end) {
                note_worker_end(lane);
                dispatcher_.on_worker_end(lane, end);
              },
              [this](int lane) { return dispatcher_.has_work_at(lane); },
              [this](const std::string& path) { return placement_.wants_measurement(model_stamp(path)); }}),
      inbox_(std::make_shared<Inbox>()),
      sensors_("", config_state_dir(config)),
      started_us_(monotonic_us()) {
  dispatcher_.set_workers(fleet_.links());
  dispatcher_.set_observers(&history_, &recent_, &degradation_);
  if (placement_.is_on()) dispatcher_.set_placement(&placement_);
  publish(started_us_);
}

Supervisor::~Supervisor() = default;

// --- the loop ---

void Supervisor::run(LoopHooks hooks) {
  on_reload_ = hooks.on_reload;
  while (!fleet_.is_stopped()) {
    int64_t now = clock_.now_us();
    fleet_.turn();
    placement_.turn(fleet_.links(), [this] { return model_stamp(fleet_.spokesman().model_path()); });
    dispatcher_.turn();
    turn_drain(now);
    turn_degradation(now);
    if (now >= next_publish_us_ || fleet_.spokesman().state() != published_state_) {
      publish(now);
      if (hooks.on_turn) hooks.on_turn(compute_readiness());
    }
    poll_once(hooks);
  }
  inbox_->close();
  inbox_->run_all();  // what came in last is answered: draining
  accounting_.collect_log_counters();
  publish(clock_.now_us());
}

void Supervisor::poll_once(const LoopHooks& hooks) {
  std::vector<pollfd> fds = {{inbox_->fd(), POLLIN, 0}};
  if (hooks.signal_fd >= 0) fds.push_back({hooks.signal_fd, POLLIN, 0});
  fleet_.add_pollfds(&fds);
  int64_t now = clock_.now_us();
  int64_t wake =
      std::min({now + kMaxPollUs, fleet_.next_wakeup_us(), dispatcher_.next_wakeup_us()});
  if (drain_until_us_ > 0) wake = std::min(wake, drain_until_us_);
  int timeout_ms = wake <= now ? 0 : static_cast<int>((wake - now + 999) / 1000);
  if (poll(fds.data(), fds.size(), timeout_ms) <= 0) return;
  if (fds[0].revents != 0) inbox_->run_all();
  if (hooks.signal_fd >= 0 && fds[1].revents != 0 && hooks.on_signal) hooks.on_signal();
}

void Supervisor::drain() {
  inbox_->post([this] {
    if (drain_until_us_ > 0) return;
    log_info("draining", {{"timeout_ms", config_.workers_drain_timeout_ms}});
    drain_until_us_ = clock_.now_us() + config_.workers_drain_timeout_ms * 1000;
    dispatcher_.set_draining(true);
    next_publish_us_ = 0;
  });
}

void Supervisor::turn_drain(int64_t now) {
  WorkerState state = fleet_.spokesman().state();
  if (drain_until_us_ == 0 || state == WorkerState::kStopped) return;
  bool is_hopeless = state == WorkerState::kNoModel || state == WorkerState::kRefused;
  if (!dispatcher_.is_empty() && now < drain_until_us_ && !is_hopeless) return;
  dispatcher_.abort_all();
  fleet_.stop();
}

void Supervisor::reload(const Config& config, Ladder ladder) {
  inbox_->post([this, config, ladder = std::move(ladder)] {
    if (config.log_level != config_.log_level) fleet_.set_log_level(config.log_level);
    config_ = config;
    dispatcher_.reload(config);
    degradation_.replace_ladder(ladder);
    fleet_.reload(config);
    next_publish_us_ = 0;
  });
}

// --- what others see ---

Readiness Supervisor::compute_readiness() const {
  using State = Readiness::State;
  if (is_drained_by_admin_ && drain_until_us_ == 0)
    return {State::kDraining, "drained by an administrator",
            "undrain it on the status page or with POST /admin/undrain"};
  if (dispatcher_.is_draining()) return {State::kDraining, "shutting down", ""};
  const WorkerKeeper& worker = fleet_.spokesman();
  switch (worker.state()) {
    case WorkerState::kNoModel:
    case WorkerState::kRefused:
      return {State::kDead, worker.cause(), worker.remedy()};
    case WorkerState::kLoading:
    case WorkerState::kBackoff: {
      bool is_failing = worker.lives_without_progress() >= kFailedLives;
      std::string cause = worker.cause();
      if (is_failing && !worker.last_end().empty()) cause += "; last end: " + worker.last_end();
      return {is_failing ? State::kDead : State::kWarming, cause, worker.remedy()};
    }
    case WorkerState::kReady:
      break;
    case WorkerState::kStopped:
      return {State::kDraining, "shutting down", ""};
  }
  int64_t limit = config_.workers_watchdog_ms * 1000 /
                  2;  // a slow chunk is no stall; the watchdog acts at the whole
  for (const auto& keeper : fleet_.keepers()) {
    if (int64_t silence = keeper->silence_us(); silence > limit)
      return {State::kDead,
              "the worker has made no progress for " + std::to_string(silence / 1000) + " ms",
              "it is restarted after workers.watchdog_ms"};
  }
  for (const auto& keeper : fleet_.keepers()) {
    if (std::string trouble = keeper->device_trouble(); !trouble.empty())
      return {State::kDegraded, trouble, "the device is looked at again after gpu.cooldown_ms"};
  }
  if (std::string cause = degradation_.cause(); !cause.empty())
    return {State::kDegraded, cause, "fewer requests, or a cooler place for heat; a pin is cleared with tandem degrade clear"};
  return {State::kReady, "", ""};
}

StatusView Supervisor::view() const {
  StatusView v;
  v.readiness = compute_readiness();
  const WorkerKeeper& worker = fleet_.spokesman();
  v.model_name = served_model_name(config_, worker.model_path());
  v.model_path = worker.model_path();
  v.model_sha256 = digest_.get();
  for (const auto& keeper : fleet_.keepers()) {
    if (keeper->model() && (!v.model || keeper->role() != ipc::Role::kPrefill)) v.model = keeper->model();
    v.workers.push_back({ipc::role_name(keeper->role()), worker_state_name(keeper->state()), keeper->cause(),
                         keeper->last_end(), keeper->number(), keeper->pid(), keeper->n_restarts(),
                         keeper->generation(), keeper->heartbeat(),
                         keeper->model() ? keeper->model()->kv_pool_bytes : 0,
                         keeper->model() ? keeper->model()->device_layers : 0,
                         keeper->model() ? keeper->model()->device : "", keeper->model() ? keeper->model()->isa : "",
                         keeper->device_trouble()});
  }
  v.device_prompts = placement_.range();
  for (int i = 0; i < 3; ++i) v.waiting[i] = dispatcher_.n_waiting(static_cast<ipc::Priority>(i));
  v.running = dispatcher_.n_running();
  v.started_us = started_us_;
  return v;
}

void Supervisor::turn_degradation(int64_t now) {
  const std::string* no_lean_reason = nullptr;
  for (const auto& keeper : fleet_.keepers()) {  // those that generate text; one with a lean set will do
    if (keeper->role() == ipc::Role::kPrefill || !keeper->model()) continue;
    no_lean_reason = &keeper->model()->no_lean_reason;
    if (no_lean_reason->empty()) break;
  }
  if (no_lean_reason != nullptr) degradation_.note_lean_set(*no_lean_reason);
  if (!degradation_.is_due(now)) return;
  Degradation::Inputs in;
  in.queue_wait_s = dispatcher_.oldest_wait_s();
  in.is_queue_full = dispatcher_.is_queue_full();
  in.is_busy = dispatcher_.n_running() > 0;
  double used = 0, pages = 0;
  for (const auto& keeper : fleet_.keepers()) {
    const ipc::Heartbeat& beat = keeper->heartbeat();
    used += static_cast<double>(beat.pages_used);
    pages += static_cast<double>(beat.pages_used + beat.pages_free);
  }
  if (pages > 0) in.kv_ratio = used / pages;
  in.host = sensors_.latest(now);
  std::string before = degradation_.cause();
  degradation_.turn(in, now);
  if (degradation_.cause() != before) next_publish_us_ = 0;
}

StatusView Supervisor::whole_view() const {
  StatusView v = view();
  v.model_created_s = view_.model_created_s;  // only the loop thread writes view_
  v.requests = dispatcher_.live_requests();
  v.has_requests = true;
  v.history.assign(history_.points().begin(), history_.points().end());
  v.max_queue = config_.limits_max_queue;
  v.degradation = degradation_.view();
  v.state_dir = config_state_dir(config_);
  v.log_path = config_.log_database.empty() ? v.state_dir + "/requests.db" : config_.log_database;
  v.log_budget_bytes = config_.log_max_bytes;
  return v;
}

void Supervisor::note_worker_end(int lane) {
  const WorkerKeeper& keeper = *fleet_.keepers()[static_cast<size_t>(lane)];
  size_t n = dispatcher_.n_running();
  std::string action = "a new one was started at once or after a pause; " + std::to_string(n) +
                       " requests go on there";
  if (keeper.state() == WorkerState::kRefused)
    action = "not started again until the model file or the configuration changes";
  recent_.add_fault("worker ended: " + keeper.last_end(), action, utc_us());
}

void Supervisor::export_readiness(Readiness::State state) {
  using State = Readiness::State;
  for (State s : {State::kReady, State::kDegraded, State::kWarming, State::kDead, State::kDraining})
    metrics_.set(Metric::kReadiness, s == state ? 1 : 0, {readiness_name(s)});
}

// What is not known is NaN, never zero: a rule that compares it stays silent.
void Supervisor::export_host() {
  HostReadings host = sensors_.latest(clock_.now_us());
  auto set = [this](Metric metric, const SensorReading& r) {
    bool is_known = r.state == SensorReading::State::kOk;
    metrics_.set(metric, is_known ? r.value : std::numeric_limits<double>::quiet_NaN());
  };
  set(Metric::kDiskFree, host.disk_free_bytes);
  set(Metric::kTemperature, host.temperature_c);
  set(Metric::kTripTemperature, host.trip_c);
  set(Metric::kMemoryAvailable, host.memory_available_bytes);
  auto resident = [](int64_t pid) { return static_cast<double>(pid > 0 ? resident_bytes(pid) : 0); };
  metrics_.set(Metric::kResidentBytes, resident(getpid()), {"supervisor"});
  double workers = 0;
  for (const auto& keeper : fleet_.keepers()) workers += resident(keeper->pid());
  metrics_.set(Metric::kResidentBytes, workers, {"worker"});
}

void Supervisor::publish(int64_t now) {
  StatusView v = view();
  v.published_us = now;
  bool is_new_worker = fleet_.spokesman().state() != published_state_;
  int64_t created = view_.model_created_s;  // only this thread writes view_
  v.model_created_s = is_new_worker || created == 0 ? model_mtime_s(v.model_path) : created;
  // Once it serves: on a small box the file's pages would compete with the loading.
  if (is_new_worker && fleet_.spokesman().state() == WorkerState::kReady)
    digest_.want(config_cache_dir(config_), model_stamp(v.model_path), model_parts(v.model_path));
  accounting_.collect_log_counters();
  history_.turn(now);
  export_readiness(v.readiness.state);
  if (now >= next_slow_look_us_) {
    next_slow_look_us_ = now + kSlowLookUs;
    export_host();
    Status log = log_->status();
    if (!log.ok() && !had_log_problem_)
      recent_.add_fault("request log: " + log.message(),
                        "its rows are dropped and counted; serving goes on", utc_us());
    had_log_problem_ = !log.ok();
  }
  published_state_ = fleet_.spokesman().state();
  next_publish_us_ = now + kPublishUs;
  std::lock_guard lock(mutex_);
  view_ = std::move(v);
}

Readiness Supervisor::readiness() {
  std::lock_guard lock(mutex_);
  bool is_draining = view_.readiness.state == Readiness::State::kDraining;
  if (!is_draining && monotonic_us() - view_.published_us > kLoopDeadUs)
    return {Readiness::State::kDead, "the supervisor's loop stands still",
            "restart tandem.service"};
  return view_.readiness;
}

std::optional<ipc::ModelInfo> Supervisor::model() {
  std::lock_guard lock(mutex_);
  return view_.model;
}

std::string Supervisor::model_name() {
  std::lock_guard lock(mutex_);
  return view_.model_name;
}

int64_t Supervisor::model_created() {
  std::lock_guard lock(mutex_);
  return view_.model_created_s;
}

std::string Supervisor::metrics_text() { return metrics_.text(); }

// Asks the loop thread; nothing if it doesn't answer in time.
template <typename T>
std::optional<T> Supervisor::ask_loop(std::function<T()> question,
                                      std::chrono::milliseconds wait) const {
  auto answer = std::make_shared<std::promise<T>>();
  auto future = answer->get_future();
  bool is_posted =
      inbox_->post([answer, question = std::move(question)] { answer->set_value(question()); });
  if (!is_posted || future.wait_for(wait) != std::future_status::ready) return std::nullopt;
  return future.get();
}

std::string Supervisor::status_json() {
  std::optional<StatusView> shown =
      ask_loop<StatusView>([this] { return whole_view(); }, kStatusWait);
  if (!shown) {
    std::lock_guard lock(mutex_);
    shown = view_;
  }
  int64_t now = monotonic_us();
  shown->readiness = readiness();
  shown->recent = recent_.requests();
  shown->faults = recent_.faults();
  shown->host = sensors_.latest(now);
  return tandem::status_json(*shown, read_box_facts(*shown), log_->counters(), log_->status(), now);
}

std::string Supervisor::config_text() {
  auto text = ask_loop<std::string>([this] { return config_to_toml(config_); }, kStatusWait);
  return text.value_or("# the supervisor's loop does not answer\n");
}

api::ApiResult<std::vector<ipc::RequestRecord>> Supervisor::query_log(
    const ipc::RecordQuery& query) {
  auto rows = log_->query(query);
  if (!rows.ok()) return api_error("log_unavailable", rows.status().message());
  return std::move(*rows);
}

void Supervisor::record_rejected(ipc::RequestRecord record) {
  accounting_.account_refused(std::move(record));
}

// --- what an administrator asks for ---

api::ApiResult<std::string> Supervisor::admin(const api::AdminCommand& command) {
  using Answer = api::ApiResult<std::string>;
  auto answer = ask_loop<Answer>([this, command] { return administer(command); }, kAdminWait);
  if (!answer) return api_error("admin_failed", "the supervisor's loop does not answer");
  return std::move(*answer);
}

bool Supervisor::restart_workers(int64_t pid) {
  bool has_any = false;
  for (const auto& keeper : fleet_.keepers()) has_any |= keeper->restart(pid);
  return has_any;
}

api::ApiResult<std::string> Supervisor::administer(const api::AdminCommand& command) {
  using Action = api::AdminCommand::Action;
  bool is_stopping = drain_until_us_ > 0 || fleet_.is_stopped();
  if (is_stopping) return api_error("admin_failed", "the server is shutting down");
  next_publish_us_ = 0;
  switch (command.action) {
    case Action::kDrain:
    case Action::kUndrain:
      is_drained_by_admin_ = command.action == Action::kDrain;
      dispatcher_.set_draining(is_drained_by_admin_);
      return is_drained_by_admin_ ? std::string("new requests are refused with 503; accepted ones are finished")
                                  : std::string("new requests are accepted");
    case Action::kReload:
      if (!on_reload_) return api_error("admin_failed", "this process cannot reload");
      if (Status status = on_reload_(); !status.ok())
        return api_error("admin_failed", "the old configuration stays: " + status.message());
      return std::string("configuration and keys were read again");
    case Action::kRestartWorker:
      if (!restart_workers(command.pid))
        return api_error("admin_failed", command.pid == 0 ? "no worker runs"
                                                          : "no worker with this pid runs");
      return std::string("the worker was ended; the next one starts and takes over its requests");
    case Action::kDegrade:
      return degradation_.set(command.rung, command.pin);
  }
  return api_error("internal_error", "an action without its code");
}

// --- requests and calls ---

api::ApiResult<std::unique_ptr<api::ResponseStream>> Supervisor::submit(
    api::GenerateRequest request) {
  struct Verdict {
    std::optional<ApiError> error;
    uint64_t id = 0;
  };
  auto buffer = std::make_shared<ResponseBuffer>(request.is_stream);
  auto verdict = std::make_shared<std::promise<Verdict>>();
  auto future = verdict->get_future();
  auto shared = std::make_shared<api::GenerateRequest>(std::move(request));
  bool is_posted = inbox_->post([this, buffer, verdict, shared] {
    Verdict v;
    v.error = dispatcher_.accept(std::move(*shared), buffer,
                                 served_model_name(config_, fleet_.spokesman().model_path()), &v.id);
    verdict->set_value(std::move(v));
  });
  if (!is_posted) return stopped_error();
  Verdict v = future.get();
  if (v.error) return std::move(*v.error);
  auto cancel = [this, inbox = inbox_, id = v.id] {
    inbox->post([this, id] { dispatcher_.cancel(id); });
  };
  return std::unique_ptr<api::ResponseStream>(
      new BufferedStream(std::move(buffer), std::move(cancel)));
}

WorkerCall::Answer Supervisor::call_worker(std::shared_ptr<WorkerCall> call,
                                           const api::CallLimits& limits) {
  if (!inbox_->post([this, call] { dispatcher_.add_call(call); })) return stopped_error();
  while (true) {
    if (auto answer = call->wait(kLookAround)) return std::move(*answer);
    bool is_late = limits.deadline_us > 0 && monotonic_us() > limits.deadline_us;
    bool is_gone = limits.is_client_gone && limits.is_client_gone();
    if (!is_late && !is_gone) continue;
    inbox_->post([this, call] { dispatcher_.drop_call(call.get()); });
    if (is_gone) return api_error("client_gone", "the client closed the connection");
    Readiness now = readiness();
    if (now.state == Readiness::State::kReady || now.state == Readiness::State::kDegraded)
      return api_error("deadline_exceeded", "the deadline came before the prompt was tokenized");
    return api_error("no_worker", "no worker was ready before the deadline: " + now.cause, "", 5);
  }
}

api::ApiResult<api::PrepareOutcome> Supervisor::prepare(ipc::Prepare request,
                                                        const api::CallLimits& limits) {
  auto call = std::make_shared<WorkerCall>();
  bool is_chat = request.kind == ipc::Prepare::Kind::kChat;
  call->question = std::move(request);
  WorkerCall::Answer answer = call_worker(call, limits);
  if (auto* error = std::get_if<ApiError>(&answer)) return std::move(*error);
  auto* reply = std::get_if<ipc::PrepareReply>(&answer);
  if (reply == nullptr) return api_error("internal_error", "a worker answered another question");
  if (!reply->ok) {
    bool is_known =
        reply->error_code == "template_error" || reply->error_code == "no_chat_template";
    return api_error(is_known ? reply->error_code : "invalid_prompt", reply->error,
                     is_chat ? "messages" : "prompt");
  }
  return api::PrepareOutcome{std::move(reply->ids), std::move(reply->prompt_text)};
}

api::ApiResult<std::string> Supervisor::detokenize(std::vector<int32_t> ids,
                                                   const api::CallLimits& limits) {
  auto call = std::make_shared<WorkerCall>();
  call->question = ipc::Detokenize{0, std::move(ids)};
  WorkerCall::Answer answer = call_worker(call, limits);
  if (auto* error = std::get_if<ApiError>(&answer)) return std::move(*error);
  auto* reply = std::get_if<ipc::DetokenizeReply>(&answer);
  if (reply == nullptr) return api_error("internal_error", "a worker answered another question");
  if (!reply->ok) return api_error("invalid_prompt", reply->error, "tokens");
  return std::move(reply->text);
}

}  // namespace tandem
