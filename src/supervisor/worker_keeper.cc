#include "supervisor/worker_keeper.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/process_memory.h"
#include "ipc/codec.h"

namespace tandem {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
constexpr int64_t kFileCheckUs = kSecondUs;  // how often a missing or refused model is looked at
constexpr int64_t kIdleLifeUs =
    10 * kSecondUs;  // ready for so long without work counts as progress
constexpr int64_t kStopGraceUs = 2 * kSecondUs;
constexpr int64_t kConnectionBytes = 8 << 20;  // what tandemd grows by under load
constexpr int64_t kWatchUs = 250'000;  // heartbeats come as often
constexpr int64_t kPackedCheckUs = 20'000;            // how often a worker looks whether the weights it waits for are there
constexpr int kLivesWithLean = 3;                     // without progress, one after the other
constexpr int64_t kMostStoringUs = 120 * kSecondUs;   // behind Ready; a disk that takes longer is not waited for
constexpr const char* kDeviceProgram = "tandem-worker-cuda";

void tell_given_up(ipc::Role role, const DevicePolicy& policy) {
  log_error("device given up: the processor takes over", {{"role", ipc::role_name(role)}, {"reason", policy.cause()}});
}

}  // namespace

WorkerKeeper::WorkerKeeper(Config config, WorkerSpec spec, HostPoolFile* pool, Metrics* metrics,
                           WorkerGauges* gauges, const Clock* clock, Hooks hooks)
    : config_(std::move(config)),
      spec_(std::move(spec)),
      pool_(pool),
      metrics_(metrics),
      clock_(clock),
      hooks_(std::move(hooks)),
      device_policy_(config_, spec_.role),
      counters_(metrics, gauges) {
  if (auto path = find_model(config_); path.ok()) path_ = *path;
}

void WorkerKeeper::add_pollfds(std::vector<pollfd>* fds) const {
  if (!process_) return;
  fds->push_back({process_->pidfd(), POLLIN, 0});
  short events = POLLIN;
  if (process_->channel().wants_write()) events |= POLLOUT;
  // A closed channel stays readable for ever: only the process's end is awaited then.
  if (!forced_end_ && channel_closed_us_ == 0)
    fds->push_back({process_->channel().fd(), events, 0});
}

void WorkerKeeper::turn() {
  int64_t now = clock_->now_us();
  watch_device(now);
  if (process_) {
    bool has_ended = process_->reap().has_value();
    if (!has_ended && process_->channel().wants_write()) (void)process_->channel().flush().ok();
    read_messages();  // after its death too: what it wrote before counts
    if (has_ended) {
      handle_end(*process_->reap());
    } else {
      watch(now);
    }
  }
  if (process_ || state_ == WorkerState::kStopped || now < start_at_us_) return;
  if (state_ == WorkerState::kRefused) {
    start_at_us_ = now + kFileCheckUs;
    if (model_stamp(path_) == refused_stamp_) return;
    log_info("model file changed", {{"path", path_}});
    policy_.reset();
  }
  try_start();
}

int64_t WorkerKeeper::next_wakeup_us() const {
  if (process_) return clock_->now_us() + kWatchUs;
  return state_ == WorkerState::kStopped ? INT64_MAX : start_at_us_;
}

void WorkerKeeper::fail_start(WorkerState state, const Status& status, const std::string& remedy) {
  if (state_ != state || cause_ != status.message())
    log_error("worker cannot start", {{"reason", status.message()}});
  state_ = state;
  cause_ = status.message();
  remedy_ = remedy;
  start_at_us_ = clock_->now_us() + kFileCheckUs;
}

void WorkerKeeper::try_start() {
  auto path = find_model(config_);
  if (!path.ok()) {
    fail_start(WorkerState::kNoModel, path.status(),
               "copy a GGUF file there; it is picked up within a second");
    return;
  }
  path_ = *path;
  if (hooks_.is_packing_elsewhere()) {  // packing it too would take twice the time and memory
    cause_ = "another worker repacks the weights";
    start_at_us_ = clock_->now_us() + kPackedCheckUs;
    return;
  }
  if (Status status = start_process(); !status.ok())
    fail_start(WorkerState::kNoModel, status, "the attempt is repeated each second");
}

// The program of the device as long as that is not given up.
Result<std::string> WorkerKeeper::choose_program() {
  spec_.device = device_policy_.device();
  if (spec_.device >= 0) {
    auto program = find_worker_program(config_, kDeviceProgram);
    if (program.ok()) return program;
    if (device_policy_.on_end("device", program.status().message(), DevicePolicy::kNeverReady, clock_->now_us())) tell_given_up(spec_.role, device_policy_);
    spec_.device = -1;
  }
  return find_worker_program(config_);
}

std::string WorkerKeeper::device_trouble() const {
  if (!device_policy_.is_given_up()) return "";
  return std::string(ipc::role_name(spec_.role)) + " runs on the processor instead of device " + config_.gpu_device + ": " + device_policy_.cause();
}

// A worker on the processor in place of a device: when it is time, the device is looked at, and if it is there the
// worker goes back to it. Its requests go on as after any restart.
void WorkerKeeper::watch_device(int64_t now) {
  if (auto answer = device_probe_.poll(now)) {
    device_policy_.on_probe(answer->is_there, answer->text, now);
    if (!answer->is_there) return log_warn("device still not usable", {{"role", ipc::role_name(spec_.role)}, {"reason", answer->text}});
    log_info("device is back", {{"role", ipc::role_name(spec_.role)}, {"device", answer->text}});
    if (process_ && !forced_end_) {
      forced_end_ = WorkerEnd{"device-back", "the device is usable again: " + answer->text, false};
      made_progress_ = true;  // this end is ours: no back-off
      process_->kill_now();
    }
    return;
  }
  if (device_probe_.is_running() || !device_policy_.is_probe_due(now) || state_ == WorkerState::kStopped) return;
  auto program = find_worker_program(config_, kDeviceProgram);
  const Status status = program.ok() ? device_probe_.start(*program, wanted_device(config_, spec_.role), now) : program.status();
  if (!status.ok()) device_policy_.on_probe(false, status.message(), now);
}

// Only named and opened here, as the model is. kNotFound: weights.lean names no file, or this worker's is a device's, where
// none would serve. Workers that end again and again may do so for its sake: one tries without.
Result<OpenModel> WorkerKeeper::open_lean() {
  if (!config_has_lean_file(config_) || spec_.device >= 0) return not_found("");
  if (policy_.lives_without_progress() >= kLivesWithLean)
    return unavailable("weights.lean: " + config_.weights_lean + " is left out, as " + std::to_string(policy_.lives_without_progress()) +
                       " workers ended before they had computed anything, the last by " + last_end_ + "; see their log, then restart the service");
  auto lean = open_model(config_.weights_lean);
  if (!lean.ok())
    return Status(lean.status().code(), "weights.lean: " + lean.status().message() + "; correct it, then restart the service");
  return lean;
}

void WorkerKeeper::open_cache(StoredSet* set, const std::string& path, const OpenModel& model, const std::string& beside) {
  set->cache = open_weights_cache(config_cache_dir(config_), path, model, beside);
  // What a worker could not even load (its fault, or the disk's) is not tried twice.
  if (is_cache_suspect_) set->cache.existing.reset();
  if (generation_ == 0) set->whole_stamp = take_whole_mark(set->cache);
}

Status WorkerKeeper::start_process() {
  refused_stamp_ = model_stamp(path_);  // before opening: a change from here on is seen
  CHECK_ASSIGN(OpenModel model, open_model(path_));
  CHECK_ASSIGN(std::string program, choose_program());
  Result<OpenModel> lean = open_lean();
  const OpenModel none;
  open_cache(&full_, path_, model, lean.ok() ? config_.weights_lean : "");
  if (lean.ok()) open_cache(&lean_, config_.weights_lean, *lean, path_);
  is_cache_suspect_ = false;
  if (const std::string trouble = full_.cache.trouble.empty() ? lean_.cache.trouble : full_.cache.trouble; trouble != cache_trouble_) {
    cache_trouble_ = trouble;
    if (!cache_trouble_.empty()) log_warn("repacked weights are not stored", {{"reason", cache_trouble_}});
  }
  CHECK_ASSIGN(process_, WorkerProcess::spawn(program, {model, full_.cache, lean.ok() ? *lean : none, lean_.cache}, spec_));
  ++generation_;
  state_ = WorkerState::kLoading;
  cause_ = "worker is starting";
  remedy_.clear();
  fatal_.reset();
  forced_end_.reset();
  heartbeat_ = {};
  made_progress_ = false;
  channel_closed_us_ = 0;
  last_sign_us_ = last_progress_us_ = last_turn_us_ = clock_->now_us();
  log_info("worker started",
           {{"role", ipc::role_name(spec_.role)}, {"number", spec_.number}, {"pid", process_->pid()},
            {"generation", generation_}, {"model", path_}});
  ipc::Configure configure;
  configure.config_toml = config_to_toml(config_);
  configure.model_names = model.paths;
  configure.generation = generation_;
  configure.role = spec_.role;
  configure.is_cache_trusted = full_.is_trusted();
  if (lean.ok()) configure.lean_names = lean->paths;
  else configure.lean_trouble = lean.status().message();
  configure.is_lean_cache_trusted = lean_.is_trusted();
  configure.measures_prompts = spec_.role != ipc::Role::kBoth && hooks_.wants_measurement(path_);
  configure.is_cache_shared = config_worker_count(config_) > 1;
  if (auto own = read_process_memory(); own.ok())
    configure.other_bytes = own->pss_bytes + kConnectionBytes;
  if (Status sent = process_->send(configure); !sent.ok()) log_warn("worker gone at start", {});
  return ok_status();
}

void WorkerKeeper::read_messages() {
  if (forced_end_) return;  // given up: its requests are re-dispatched from what was seen so far
  std::vector<std::string> frames;
  Status status;
  bool is_dead = process_->reap().has_value();
  do {
    frames.clear();
    status = process_->channel().receive(&frames);
    for (const std::string& frame : frames) {
      auto message =
          ipc::decode_from_worker({reinterpret_cast<const uint8_t*>(frame.data()), frame.size()});
      if (!message.ok()) return protocol_fault(message.status().message());
      last_sign_us_ = clock_->now_us();
      handle(std::move(*message));
      if (forced_end_) return;
    }
  } while (is_dead && status.ok() && !frames.empty());
  if (status.code() == StatusCode::kDataLoss) return protocol_fault(status.message());
  // Closed: its end is near, or it lost its mind; watch() waits a moment before it decides.
  if (!status.ok() && channel_closed_us_ == 0) channel_closed_us_ = clock_->now_us();
}

void WorkerKeeper::handle(ipc::FromWorker message) {
  if (auto* hello = std::get_if<ipc::Hello>(&message)) {
    if (hello->protocol != ipc::kProtocolVersion)
      protocol_fault("protocol version " + std::to_string(hello->protocol) + ", needed " +
                     std::to_string(ipc::kProtocolVersion) +
                     ": tandemd and tandem-worker are of two builds");
  } else if (auto* progress = std::get_if<ipc::Progress>(&message)) {
    cause_ =
        progress->phase + " " + std::to_string(static_cast<int>(progress->fraction * 100)) + " %";
  } else if (auto* fatal = std::get_if<ipc::Fatal>(&message)) {
    fatal_ = std::move(*fatal);
  } else if (auto* ready = std::get_if<ipc::Ready>(&message)) {
    handle_ready(std::move(*ready));
  } else if (auto* request = std::get_if<ipc::PoolRequest>(&message)) {
    handle_pool_request(*request);
  } else if (auto* done = std::get_if<ipc::WeightsCacheDone>(&message)) {
    handle_weights_cache(*done);
  } else if (auto* beat = std::get_if<ipc::Heartbeat>(&message)) {
    handle_heartbeat(*beat);
  } else if (state_ == WorkerState::kReady) {
    hooks_.on_message(std::move(message));
  }
}

void WorkerKeeper::handle_ready(ipc::Ready ready) {
  model_ = std::move(ready.model);
  state_ = WorkerState::kReady;
  cause_.clear();
  ready_us_ = last_progress_us_ = last_turn_us_ = clock_->now_us();
  log_info("worker ready", {{"role", ipc::role_name(spec_.role)},
                            {"pid", process_->pid()},
                            {"generation", generation_},
                            {"architecture", model_->architecture},
                            {"device", model_->device},
                            {"isa", model_->isa},
                            {"device_layers", model_->device_layers},
                            {"context_tokens", model_->context_tokens},
                            {"pool_tokens", model_->pool_tokens}});
  hooks_.on_up_changed();
}

void WorkerKeeper::handle_pool_request(const ipc::PoolRequest& request) {
  ipc::PoolGrant grant;
  Status status = pool_ != nullptr ? pool_->resize(request.bytes) : internal_error("this worker has no pool");
  if (!status.ok()) grant.error = status.message();
  grant.bytes = pool_ != nullptr ? pool_->bytes() : 0;
  (void)process_->send(grant).ok();  // gone: its end is seen elsewhere
}

void WorkerKeeper::handle_weights_cache(const ipc::WeightsCacheDone& done) {
  StoredSet& set = done.is_lean ? lean_ : full_;
  if (!done.damage.empty()) {  // what it computed with them cannot be trusted either
    remove_weights_cache(set.cache);
    set.whole_stamp.clear();
    log_error("worker killed", {{"pid", process_->pid()}, {"cause", "weights"}, {"detail", done.damage}});
    forced_end_ = WorkerEnd{"internal", done.damage, false};
    return process_->kill_now();
  }
  if (done.is_whole) {
    set.whole_stamp = set.cache.stamp;
    log_info("packed weights are whole", {{"file", set.cache.name}});
  }
  if (!done.is_stored) return set.cache.fresh.reset();
  if (Status status = publish_weights_cache(&set.cache); !status.ok()) {
    log_warn("repacked weights are not stored", {{"reason", status.message()}});
    return;
  }
  set.whole_stamp = set.cache.stamp;
  log_info("repacked weights stored", {{"file", set.cache.name}});
}

bool WorkerKeeper::is_packing() const {
  if (!process_ || forced_end_ || !(full_.is_being_made() || lean_.is_being_made())) return false;
  return state_ == WorkerState::kLoading ||
         (state_ == WorkerState::kReady && clock_->now_us() - ready_us_ < kMostStoringUs);
}

void WorkerKeeper::handle_heartbeat(const ipc::Heartbeat& beat) {
  if (beat.steps > heartbeat_.steps) note_progress();
  if (beat.engine_turns != heartbeat_.engine_turns) last_turn_us_ = clock_->now_us();
  heartbeat_ = beat;
  counters_.on_heartbeat(beat);
}

void WorkerKeeper::note_dispatch() {
  if (!hooks_.has_work()) last_progress_us_ = clock_->now_us();
}

void WorkerKeeper::note_progress() {
  last_progress_us_ = clock_->now_us();
  made_progress_ = true;
}

int64_t WorkerKeeper::silence_us() const {
  if (state_ != WorkerState::kReady) return 0;
  int64_t since = std::min(last_sign_us_, std::max(last_turn_us_, last_progress_us_));
  if (hooks_.has_work()) since = std::min(since, last_progress_us_);
  return clock_->now_us() - since;
}

// Loading: any message is a sign of life. Ready: heartbeats must come, the engine's loop must turn,
// and with work there must be progress.
void WorkerKeeper::watch(int64_t now) {
  if (state_ == WorkerState::kStopped) {
    if (now - stop_us_ > kStopGraceUs) process_->kill_now();
    return;
  }
  if (forced_end_) return;
  if (channel_closed_us_ != 0 && now - channel_closed_us_ > kStopGraceUs)
    return kill_as("internal", "closed its channel and went on");
  int64_t limit = config_.workers_watchdog_ms * 1000;
  if (state_ == WorkerState::kLoading && now - last_sign_us_ > limit)
    return kill_as("watchdog",
                   "no sign of life while loading for " + std::to_string(limit / 1000) + " ms");
  if (state_ == WorkerState::kReady && silence_us() > limit)
    return kill_as("watchdog", "no progress for " + std::to_string(limit / 1000) + " ms");
}

void WorkerKeeper::kill_as(const char* cause, const std::string& detail) {
  log_error("worker killed", {{"pid", process_->pid()}, {"cause", cause}, {"detail", detail}});
  forced_end_ = WorkerEnd{cause, detail, true};
  process_->kill_now();
}

bool WorkerKeeper::restart(int64_t pid) {
  if (!process_ || forced_end_ || state_ == WorkerState::kStopped) return false;
  if (pid != 0 && pid != process_->pid()) return false;
  forced_end_ = WorkerEnd{"admin", "restarted by an administrator", false};
  made_progress_ = true;  // no back-off
  process_->kill_now();
  return true;
}

void WorkerKeeper::protocol_fault(const std::string& what) {
  if (process_ && !forced_end_) kill_as("internal", "wrong message: " + what);
}

void WorkerKeeper::handle_end(WorkerEnd end) {
  if (forced_end_) end = *forced_end_;
  int64_t now = clock_->now_us();
  bool was_ready = state_ == WorkerState::kReady;
  if (was_ready && now - ready_us_ > kIdleLifeUs && !end.is_own_fault) made_progress_ = true;
  is_cache_suspect_ = state_ == WorkerState::kLoading && end.is_own_fault &&
                      (full_.cache.existing.valid() || lean_.cache.existing.valid());
  process_.reset();
  for (StoredSet* set : {&full_, &lean_}) {
    if (state_ == WorkerState::kStopped && !set->whole_stamp.empty() && set->cache.stamp == set->whole_stamp) leave_whole_mark(set->cache);
    set->cache = {};
  }
  counters_.on_worker_end();
  heartbeat_ = {};
  if (state_ == WorkerState::kStopped) return hooks_.on_up_changed();
  std::string reason = fatal_ ? fatal_->message : end.detail;
  last_end_ = end.cause + ": " + reason;
  const bool gives_up_device = spec_.device >= 0 && device_policy_.on_end(end.cause, reason, was_ready ? now - ready_us_ : DevicePolicy::kNeverReady, now);
  if (gives_up_device) {
    tell_given_up(spec_.role, device_policy_);
    policy_.reset();
  }
  ++n_restarts_;
  metrics_->add(Metric::kWorkerRestarts, 1, {ipc::role_name(spec_.role), end.cause});
  if (end.cause == "config") {
    state_ = WorkerState::kRefused;
    cause_ = reason;
    remedy_ =
        "replace the model file or change the configuration; the file is looked at each second";
    start_at_us_ = now + kFileCheckUs;
    log_error("model refused", {{"path", path_}, {"reason", reason}});
    if (pending_config_) take_pending_config();
  } else {
    int64_t delay = policy_.on_end(made_progress_);
    state_ = WorkerState::kBackoff;
    cause_ = "worker ended (" + last_end_ + "), restarting";
    remedy_.clear();
    start_at_us_ = now + delay;
    log_warn("worker ended", {{"role", ipc::role_name(spec_.role)},
                              {"generation", generation_},
                              {"cause", end.cause},
                              {"detail", reason},
                              {"restart_in_ms", delay / 1000}});
  }
  hooks_.on_up_changed();
  hooks_.on_end(end);
}

bool WorkerKeeper::send(const ipc::ToWorker& message) {
  if (state_ != WorkerState::kReady || !process_ || forced_end_ || channel_closed_us_ != 0)
    return false;
  return process_->send(message).ok();
}

void WorkerKeeper::reload(const Config& config) {
  config_.workers_watchdog_ms = config.workers_watchdog_ms;
  pending_config_ = config;
  bool is_waiting = state_ == WorkerState::kRefused || state_ == WorkerState::kNoModel;
  if (is_waiting && !process_) take_pending_config();
}

void WorkerKeeper::take_pending_config() {
  config_ = *std::exchange(pending_config_, std::nullopt);
  policy_.reset();
  refused_stamp_.clear();  // other than any file's: tried again
  start_at_us_ = 0;
}

void WorkerKeeper::set_log_level(const std::string& level) {
  config_.log_level = level;
  if (process_) (void)process_->send(ipc::SetLogLevel{level}).ok();
}

void WorkerKeeper::stop() {
  if (process_) (void)process_->send(ipc::Shutdown{}).ok();
  state_ = WorkerState::kStopped;
  cause_ = "shutting down";
  stop_us_ = clock_->now_us();
}

}  // namespace tandem
