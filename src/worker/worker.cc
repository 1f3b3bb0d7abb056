#include "worker/worker.h"

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "cpu/dense_library.h"
#include "ipc/channel.h"
#include "ipc/codec.h"
#include "worker/mailbox.h"
#include "worker/memory_plan.h"
#include "worker/model_load.h"
#include "worker/prompt_cost.h"
#include "worker/rehearsal.h"
#include "worker/request_streams.h"
#include "worker/sandbox.h"
#include "worker/text_thread.h"
#include "worker/warmup.h"
#include "worker/weight_figures.h"

namespace tandem {
namespace {

constexpr int kExitBug = 70, kExitDevice = 75, kExitConfig = 78;
constexpr int64_t kHeartbeatUs = 250'000;
constexpr int64_t kProgressUs = 100'000;  // at most so often while loading
constexpr int64_t kRehearsalUs = 1'000'000, kRehearsalOnDeviceUs = 3'000'000;

int exit_code_of(const Status& status) {
  if (status.code() == StatusCode::kInternal) return kExitBug;
  return status.code() == StatusCode::kUnavailable ? kExitDevice : kExitConfig;
}

std::vector<GgufFile> named_files(const std::vector<int>& fds, const std::vector<std::string>& names, const std::string& kind) {
  std::vector<GgufFile> files;
  for (size_t i = 0; i < fds.size(); ++i)
    files.push_back({UniqueFd(fds[i]), i < names.size() ? names[i] : kind + " part " + std::to_string(i + 1)});
  return files;
}

class Worker {
 public:
  explicit Worker(const WorkerOptions& options)
      : options_(options), channel_(UniqueFd(options.channel_fd)) {}
  int run();

 private:
  // Start-up, on the I/O thread. The result is an exit code; none: go on.
  std::optional<int> wait_for_configure();
  std::optional<int> configure(const ipc::Configure& message);
  std::optional<int> open_device();
  std::optional<int> close_sandbox();
  int fail(int exit_code, const std::string& message);

  // Engine thread.
  void engine_main(std::vector<GgufFile> files, std::vector<GgufFile> lean_files);
  Result<std::unique_ptr<LoadedModel>> load(std::vector<GgufFile> files, std::vector<GgufFile> lean_files);
  Status grow_pool(int64_t bytes);
  Status start_engine();
  Status rehearse_steps(int64_t canary_us, const TakeEvents& take_events);
  Status warm_prompts(const TakeEvents& take_events);
  Status look_at_sets(const TakeEvents& take_events);

  // Service, on the I/O thread.
  int serve();
  std::optional<int> read_channel();
  std::optional<int> handle_frame(const std::string& frame);
  void handle(ipc::Submit message);
  void handle(const ipc::Cancel& message);
  std::optional<int> handle(ipc::Lend message);
  std::optional<int> handle(const ipc::SetWeights& message);
  std::optional<int> handle_letters();
  void handle_loaded();
  void touch_pool();
  void store_weights();
  void store(PackCache* cache, ipc::WeightsCacheDone done);
  void emit(RequestStreams::Output output);
  void heartbeat();
  bool send(const ipc::FromWorker& message);
  int stop(int exit_code);

  const WorkerOptions options_;
  ipc::Channel channel_;
  bool is_channel_gone_ = false;
  std::vector<std::string> early_frames_;  // came together with Configure
  std::optional<ipc::Configure> configuration_;
  Config config_;
  HostFacts host_;
  std::optional<GpuFacts> gpu_;  // where the model runs
  SandboxState sandbox_{"off by configuration", "off by configuration"};

  Mailbox mailbox_;
  Clock clock_;
  std::thread engine_thread_;
  std::thread pool_thread_;  // short-lived
  std::atomic<bool> stop_{false};
  // Written by the engine thread before post_loaded(), read by the I/O thread after it.
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<Engine> engine_;
  std::vector<EngineEvents> canary_events_;  // engine thread
  bool is_canary_ = true;                    // engine thread
  uint64_t n_startup_tokens_ = 0;  // computed before Ready: nobody asked for them

  bool is_loaded_ = false;
  std::optional<TextThread> text_thread_;
  std::optional<RequestStreams> streams_;
  int64_t next_beat_us_ = 0;
  std::promise<ipc::PoolGrant> pool_grant_;  // set by the I/O thread, taken by the engine thread
  bool has_pool_grant_ = false;              // I/O thread
};

// --- start-up ---------------------------------------------------------------------------------------

int Worker::run() {
  send(ipc::Hello{ipc::kProtocolVersion, getpid()});
  host_ = read_host_facts();
  if (auto code = wait_for_configure()) return *code;
  if (auto code = configure(*configuration_)) return *code;
  if (auto code = open_device()) return *code;
  if (auto code = close_sandbox()) return *code;
  log_init("worker", LogLevel::kInfo);  // starts a thread, so after the sandbox
  LogLevel level = LogLevel::kInfo;
  if (log_parse_level(config_.log_level, &level)) log_set_level(level);
  std::vector<GgufFile> files = named_files(options_.model_fds, configuration_->model_names, "model");
  std::vector<GgufFile> lean_files = named_files(options_.lean_fds, configuration_->lean_names, "lean");
  engine_thread_ = std::thread([this, files = std::move(files), lean_files = std::move(lean_files)]() mutable {
    engine_main(std::move(files), std::move(lean_files));
  });
  return stop(serve());
}

std::optional<int> Worker::wait_for_configure() {
  while (!configuration_) {
    pollfd p{channel_.fd(), POLLIN, 0};
    if (poll(&p, 1, -1) < 0 && errno != EINTR) return kExitBug;
    std::vector<std::string> frames;
    Status status = channel_.receive(&frames);
    for (std::string& frame : frames) {
      if (configuration_) {
        early_frames_.push_back(std::move(frame));
        continue;
      }
      auto message = ipc::decode_to_worker({reinterpret_cast<const uint8_t*>(frame.data()), frame.size()});
      if (!message.ok()) return fail(kExitBug, message.status().message());
      if (std::holds_alternative<ipc::Shutdown>(*message)) return 0;
      if (auto* c = std::get_if<ipc::Configure>(&*message)) configuration_ = std::move(*c);
      else return fail(kExitBug, "the first message must be Configure");
    }
    if (!status.ok() && !configuration_) return 0;
  }
  return std::nullopt;
}

std::optional<int> Worker::configure(const ipc::Configure& message) {
  if (message.protocol != ipc::kProtocolVersion) {
    return fail(kExitConfig, "tandemd speaks protocol " + std::to_string(message.protocol) + ", this worker " +
                                 std::to_string(ipc::kProtocolVersion) + "; install both from one package");
  }
  if (message.role != options_.role)
    return fail(kExitBug, std::string("started as ") + ipc::role_name(options_.role) + ", told to be " + ipc::role_name(message.role));
  if (message.role == ipc::Role::kPrefill && options_.pool_fd < 0)
    return fail(kExitConfig, "a prefill worker needs a host pool to lend from, and none could be made");
  if (message.role == ipc::Role::kDecode && ((options_.pool_fd < 0 && options_.device < 0) || options_.lent_pool_fds.empty()))
    return fail(kExitConfig, "a decode worker needs the host pools of prefill workers, and none could be made");
  Status status = config_load_text(message.config_toml, "configuration from tandemd", &config_);
  if (status.ok()) status = config_validate(config_);
  if (!status.ok()) return fail(kExitConfig, status.message());
  // Workers without processors of their own share all of them: together no more threads than cores.
  const std::string& own = options_.role == ipc::Role::kBoth      ? config_.workers_both_cpus
                           : options_.role == ipc::Role::kPrefill ? config_.workers_prefill_cpus
                                                                  : config_.workers_decode_cpus;
  const int n_sharing = own.empty() ? static_cast<int>(config_workers_sharing_cpus(config_)) : 1;
  host_.cpu.n_usable_cores = std::max(1, host_.cpu.n_usable_cores / std::max(1, n_sharing));
  return std::nullopt;
}

// Before the sandbox, as drivers open files of their own.
std::optional<int> Worker::open_device() {
  if (options_.device < 0) return std::nullopt;
  auto gpu = open_gpu(options_.device);
  if (!gpu.ok()) return fail(exit_code_of(gpu.status()), gpu.status().message());
  gpu_ = *gpu;
  return std::nullopt;
}

std::optional<int> Worker::close_sandbox() {
  if (!config_.cpu_deterministic) (void)DenseLibrary::open();  // while files may be opened
  if (!config_.workers_sandbox) return std::nullopt;
  auto state = enter_sandbox(gpu_.has_value());
  if (!state.ok())
    return fail(kExitConfig, state.status().message() + "; workers.sandbox = false runs without, for debugging");
  sandbox_ = *state;
  return std::nullopt;
}

int Worker::fail(int exit_code, const std::string& message) {
  log_error("worker cannot go on", {{"exit_code", exit_code}, {"reason", message}});
  send(ipc::Fatal{exit_code, message});
  return exit_code;
}

// --- engine thread ----------------------------------------------------------------------------------

void Worker::engine_main(std::vector<GgufFile> files, std::vector<GgufFile> lean_files) {
  auto loaded = load(std::move(files), std::move(lean_files));
  Status status = loaded.ok() ? ok_status() : loaded.status();
  if (loaded.ok()) {
    model_ = std::move(*loaded);
    status = start_engine();
  }
  if (!status.ok()) {
    mailbox_.post_fatal({exit_code_of(status), status.message()});
    return;
  }
  mailbox_.post_loaded();
  engine_->run(stop_);
}

Result<std::unique_ptr<LoadedModel>> Worker::load(std::vector<GgufFile> files, std::vector<GgufFile> lean_files) {
  std::string last_phase;
  int64_t last_us = 0;
  PackCache::Files cache{UniqueFd(options_.cache_fd), UniqueFd(options_.new_cache_fd),
                         configuration_->is_cache_trusted, configuration_->is_cache_shared};
  LeanSource lean{std::move(lean_files),
                  {UniqueFd(options_.lean_cache_fd), UniqueFd(options_.new_lean_cache_fd), configuration_->is_lean_cache_trusted,
                   configuration_->is_cache_shared},
                  configuration_->lean_trouble};
  HostPoolAccess pool{options_.pool_fd, configuration_->generation, options_.lent_pool_fds,
                      [this](int64_t bytes) { return grow_pool(bytes); }};
  return load_model(std::move(files), std::move(cache), std::move(lean), pool, config_, host_, gpu_ ? &*gpu_ : nullptr, configuration_->other_bytes,
                    [&](const std::string& phase, float fraction) {
    int64_t now = monotonic_us();
    if (phase == last_phase && now - last_us < kProgressUs) return;
    last_phase = phase;
    last_us = now;
    mailbox_.post_message(ipc::Progress{phase, fraction});
  });
}

// Only tandemd may size the memfd. The answer comes by the I/O thread; without one this process is about to end.
Status Worker::grow_pool(int64_t bytes) {
  std::future<ipc::PoolGrant> answer = pool_grant_.get_future();
  mailbox_.post_message(ipc::PoolRequest{bytes});
  ipc::PoolGrant grant = answer.get();
  return grant.error.empty() ? ok_status() : exhausted(grant.error);
}

Status Worker::start_engine() {
  EngineOptions options = model_->engine_options;
  options.on_backend_error = [this](const Status& status) {
    int code = status.code() == StatusCode::kUnavailable ? kExitDevice : kExitBug;
    mailbox_.post_fatal({code, "the backend failed: " + status.message()});
  };
  engine_ = std::make_unique<Engine>(model_->backend.get(), std::move(options), &clock_, [this](EngineEvents e) {
    if (is_canary_) canary_events_.push_back(std::move(e));
    else mailbox_.post_events(std::move(e));
  });
  const auto take_events = [this] {
    EngineEvents all;
    for (EngineEvents& e : std::exchange(canary_events_, {})) {
      std::move(e.tokens.begin(), e.tokens.end(), std::back_inserter(all.tokens));
      std::move(e.prompts.begin(), e.prompts.end(), std::back_inserter(all.prompts));
    }
    return all;
  };
  const int64_t begin_us = monotonic_us();
  CHECK_OK(run_canary(engine_.get(), *model_, take_events));
  const int64_t canary_us = monotonic_us() - begin_us;
  CHECK_OK(look_at_sets(take_events));
  if (options_.role != ipc::Role::kDecode) CHECK_OK(warm_prompts(take_events));
  CHECK_OK(rehearse_steps(canary_us, take_events));
  model_->info.pool_tokens = engine_->max_tokens_per_sequence();
  if (configuration_->measures_prompts) {
    mailbox_.post_message(ipc::Progress{"measuring prompts", 0});
    CHECK_OK(measure_prompts(engine_.get(), model_.get(), take_events));
  }
  is_canary_ = false;
  n_startup_tokens_ = engine_->counters().computed_tokens;
  return ok_status();
}

// On the processor there is no graph to capture: a start from packed weights goes without, and its scheduler learns from the first steps.
Status Worker::rehearse_steps(int64_t canary_us, const TakeEvents& take_events) {
  const bool is_on_device = model_->info.device == "gpu";
  if (model_->engine_options.batching != Batching::kContinuous || (!is_on_device && model_->pack_cache->is_hit())) return ok_status();
  mailbox_.post_message(ipc::Progress{"running each batch size", 0});
  const int64_t begin_us = monotonic_us();
  CHECK_ASSIGN(const int n, rehearse(engine_.get(), {model_->engine_options.max_batch_size, model_->info.no_lean_reason.empty() ? 2 : 1,
                                                     model_->info.vocab_size, is_on_device ? kRehearsalOnDeviceUs : kRehearsalUs, canary_us},
                                     take_events));
  log_info("batch sizes run", {{"most_sequences", n}, {"ms", (monotonic_us() - begin_us) / 1000}});
  return ok_status();
}

// A decode worker computes no prompts, so it has no use for these.
Status Worker::warm_prompts(const TakeEvents& take_events) {
  const std::vector<std::string> prompts = split_warmup_prompts(config_.warmup_prompts);
  if (prompts.empty()) return ok_status();
  CHECK_ASSIGN(const WarmupResult result,
               warm_up(engine_.get(), prompts, model_->text(), model_->info.context_tokens, take_events,
                       [this](const std::string& phase, float fraction) { mailbox_.post_message(ipc::Progress{phase, fraction}); }));
  log_info("system prompts are prefilled", {{"prompts", result.n_prompts}, {"pinned_tokens", result.n_pinned_tokens}});
  return ok_status();
}

// Measured once a model, machine and file of the lean set: it is stored with the packed weights. A worker of another number
// of threads measures for itself, as two that store in turn would write the file at every start. So does one on a device,
// whose weights no file keeps.
Status Worker::look_at_sets(const TakeEvents& take_events) {
  ipc::ModelInfo& info = model_->info;
  const WeightBytes bytes = model_->backend->weight_bytes();
  info.full_set_bytes = bytes.full, info.lean_set_bytes = bytes.lean;
  const bool is_on_device = info.device == "gpu";
  SetFigures figures = is_on_device ? SetFigures{} : model_->pack_cache->figures();
  if (const auto lean_file = model_->lean_cache ? model_->lean_cache->file_id() : PackCache::Hash{}; figures.lean_file != lean_file)
    figures = {}, figures.lean_file = lean_file;
  if (bytes.lean > 0 && (figures.full_ms <= 0 || figures.n_threads != static_cast<uint32_t>(model_->n_threads))) {
    mailbox_.post_message(ipc::Progress{"measuring weight sets", 0});
    const bool is_first = figures.full_ms <= 0;
    auto measured = measure_sets(engine_.get(), *model_, figures, take_events);
    if (!measured.ok() && model_->lean_cache) {  // the canary was computed: it is that file's weights
      model_->no_lean_file = info.lean_file + ": " + measured.status().message();
      info.no_lean_reason = no_lean_reason(config_, *model_, figures);
      log_warn("weights.lean does not serve", {{"reason", model_->no_lean_file}});
      return engine_->set_weights(WeightSet::kFull);
    }
    CHECK_OK(measured.status());
    figures = *measured;
    if (is_first && !is_on_device) model_->pack_cache->set_figures(info.isa, figures);
    log_info("weight sets measured", {{"full_ms", figures.full_ms}, {"lean_ms", figures.lean_ms},
                                      {"full_perplexity", figures.full_perplexity}, {"lean_perplexity", figures.lean_perplexity},
                                      {"full_bytes", bytes.full}, {"lean_bytes", bytes.lean}});
  }
  if (bytes.lean > 0) {
    info.full_step_ms = figures.full_ms, info.lean_step_ms = figures.lean_ms;
    info.full_perplexity = figures.full_perplexity, info.lean_perplexity = figures.lean_perplexity;
  }
  info.no_lean_reason = no_lean_reason(config_, *model_, figures);
  return ok_status();
}

// --- service ----------------------------------------------------------------------------------------

int Worker::serve() {
  for (const std::string& frame : std::exchange(early_frames_, {})) {
    if (auto code = handle_frame(frame)) return *code;
  }
  for (;;) {
    int64_t wait_us = is_loaded_ ? next_beat_us_ - monotonic_us() : kHeartbeatUs;
    pollfd fds[2] = {{channel_.fd(), static_cast<short>(channel_.wants_write() ? POLLIN | POLLOUT : POLLIN), 0},
                     {mailbox_.bell_fd(), POLLIN, 0}};
    int n = poll(fds, 2, static_cast<int>(std::max<int64_t>(0, (wait_us + 999) / 1000)));
    if (n < 0 && errno != EINTR) return kExitBug;
    if (n > 0 && fds[1].revents != 0) {
      if (auto code = handle_letters()) return *code;
    }
    if (n > 0 && (fds[0].revents & POLLOUT) != 0 && !channel_.flush().ok()) return 0;
    if (n > 0 && (fds[0].revents & ~POLLOUT) != 0) {
      if (auto code = read_channel()) return *code;
    }
    if (is_loaded_ && monotonic_us() >= next_beat_us_) heartbeat();
    if (is_channel_gone_) return 0;
  }
}

std::optional<int> Worker::read_channel() {
  std::vector<std::string> frames;
  Status status = channel_.receive(&frames);
  for (const std::string& frame : frames) {
    if (auto code = handle_frame(frame)) return code;
  }
  if (status.ok()) return std::nullopt;
  if (status.code() == StatusCode::kUnavailable) return 0;  // the supervisor is gone
  return fail(kExitBug, status.message());
}

std::optional<int> Worker::handle_frame(const std::string& frame) {
  auto decoded = ipc::decode_to_worker({reinterpret_cast<const uint8_t*>(frame.data()), frame.size()});
  if (!decoded.ok()) return fail(kExitBug, decoded.status().message());
  ipc::ToWorker& message = *decoded;
  if (std::holds_alternative<ipc::Shutdown>(message)) return 0;
  if (auto* m = std::get_if<ipc::SetLogLevel>(&message)) {
    LogLevel level = LogLevel::kInfo;
    if (log_parse_level(m->level, &level)) log_set_level(level);
    return std::nullopt;
  }
  if (auto* m = std::get_if<ipc::PoolGrant>(&message)) {
    if (std::exchange(has_pool_grant_, true)) return fail(kExitBug, "PoolGrant came twice");
    pool_grant_.set_value(std::move(*m));
    return std::nullopt;
  }
  if (!is_loaded_) return fail(kExitBug, "the supervisor sent work before Ready");
  if (auto* m = std::get_if<ipc::Submit>(&message)) handle(std::move(*m));
  else if (auto* m = std::get_if<ipc::Cancel>(&message)) handle(*m);
  else if (auto* m = std::get_if<ipc::Release>(&message)) engine_->release(m->id);
  else if (auto* m = std::get_if<ipc::SetWeights>(&message)) return handle(*m);
  else if (auto* m = std::get_if<ipc::Lend>(&message)) return handle(std::move(*m));
  else if (auto* m = std::get_if<ipc::Prepare>(&message)) text_thread_->add(std::move(*m));
  else if (auto* m = std::get_if<ipc::Detokenize>(&message)) text_thread_->add(std::move(*m));
  else return fail(kExitBug, "Configure came twice");
  return std::nullopt;
}

void Worker::handle(ipc::Submit message) {
  RequestStreams::Output output;
  uint64_t id = message.id;
  auto request = streams_->begin(std::move(message), &output);
  emit(std::move(output));
  if (!request) return;
  log_debug("request submitted", {{"request", id}, {"prompt_tokens", request->prompt.size()}});
  if (Status status = engine_->submit(std::move(*request)); !status.ok()) {
    EngineEvents events;
    for (uint32_t choice : streams_->unfinished_choices(id)) {
      EngineToken token;
      token.id = id, token.choice = choice, token.end = SequenceEnd::kFailed, token.error = status.message();
      events.tokens.push_back(std::move(token));
    }
    RequestStreams::Output failed;
    streams_->translate(std::move(events), &failed);
    emit(std::move(failed));
  }
}

std::optional<int> Worker::handle(const ipc::SetWeights& message) {
  Status status = engine_->set_weights(message.is_lean ? WeightSet::kLean : WeightSet::kFull);
  if (!status.ok()) return fail(kExitBug, "told to compute with the lean set: " + status.message());
  log_info("weights switched", {{"set", message.is_lean ? "lean" : "full"}});
  return std::nullopt;
}

void Worker::handle(const ipc::Cancel& message) {
  (void)streams_->cancel(message.id, message.reason);
  // Also where no stream is known: pages may have arrived for it, or be lent.
  engine_->cancel(message.id, -1, false, SequenceEnd::kCancelled);
}

std::optional<int> Worker::handle(ipc::Lend message) {
  if (model_->lent_pools == nullptr) return fail(kExitBug, "pages were lent to a worker without the lender's pool");
  engine_->arrive(engine_loan(message.id, message.loan), std::move(message.tokens));
  return std::nullopt;
}

std::optional<int> Worker::handle_letters() {
  Mailbox::Letters letters = mailbox_.take();
  for (const ipc::FromWorker& message : letters.messages) send(message);
  if (letters.is_loaded) handle_loaded();
  if (!letters.engine_events.empty()) {
    RequestStreams::Output output;
    for (EngineEvents& events : letters.engine_events) streams_->translate(std::move(events), &output);
    emit(std::move(output));
  }
  if (letters.fatal) return fail(letters.fatal->exit_code, letters.fatal->message);
  return std::nullopt;
}

void Worker::handle_loaded() {
  is_loaded_ = true;
  text_thread_.emplace(model_->text(), &mailbox_);
  streams_.emplace(model_->tokenizer.get(), options_.role, configuration_->generation);
  const ipc::ModelInfo& m = model_->info;
  log_info("worker ready", {{"model", m.name},
                            {"architecture", m.architecture},
                            {"quantization", m.quantization},
                            {"backend", model_->backend->description()},
                            {"device", m.device},
                            {"isa", m.isa},
                            {"cores", host_.cpu.n_usable_cores},
                            {"context_tokens", m.context_tokens},
                            {"weight_bytes", m.weight_bytes},
                            {"kv_pool_bytes", m.kv_pool_bytes},
                            {"pool_tokens", m.pool_tokens},
                            {"predicted_memory_bytes", total_bytes(m.memory)},
                            {"memory", describe(m.memory)},
                            {"landlock", sandbox_.landlock},
                            {"seccomp", sandbox_.seccomp},
                            {"role", ipc::role_name(options_.role)},
                            {"pages_readopted", engine_->counters().pages_readopted.load()},
                            {"generation", configuration_->generation}});
  pool_thread_ = std::thread([this] { touch_pool(), store_weights(); });
  if (!m.has_chat_template) log_warn("chat is refused", {{"reason", m.chat_template_error}});
  send(ipc::Ready{m});
  next_beat_us_ = monotonic_us();
}

// Behind everybody else: a pool that an earlier worker committed only gets its page tables here. Memory that is not
// there ends the worker with the reason, and not at some later store into a page.
void Worker::touch_pool() {
  setpriority(PRIO_PROCESS, 0, 19);  // this thread
  Status status = model_->host_pool ? model_->host_pool->touch(1, stop_) : model_->backend->touch_pages(stop_);
  if (!status.ok()) mailbox_.post_fatal({exit_code_of(status), status.message()});
}

void Worker::store_weights() {
  ipc::WeightsCacheDone full, lean;
  lean.is_lean = true;
  if (options_.cache_fd >= 0 || options_.new_cache_fd >= 0) store(model_->pack_cache.get(), full);
  if (options_.lean_cache_fd < 0 && options_.new_lean_cache_fd < 0) return;
  if (model_->lean_cache) store(model_->lean_cache.get(), lean);
  else mailbox_.post_message(lean);  // of a file that does not serve: nobody need wait for it
}

// The file has no name yet: a death in the middle leaves nothing behind.
void Worker::store(PackCache* packed, ipc::WeightsCacheDone done) {
  PackCache& cache = *packed;
  if (cache.is_hit() && !cache.is_verified()) {
    Status status = cache.verify(stop_);
    if (status.code() == StatusCode::kDataLoss) done.damage = status.message();
  }
  done.is_whole = cache.is_hit() && cache.is_verified();
  if (cache.has_kept() && done.damage.empty()) {
    Status status = cache.store(stop_);
    done.is_stored = status.ok();
    if (!status.ok() && !stop_)
      log_warn("weights stay in memory, the next start repacks them", {{"reason", status.message()}});
  }
  mailbox_.post_message(done);
  if (model_->info.device != "cpu") return;  // of a model that is cut, most of the file is the device's
  if (Status status = cache.move_to_huge_pages(stop_); !status.ok() && !stop_)
    log_warn("weights stay in small pages", {{"reason", status.message()}});
}

void Worker::emit(RequestStreams::Output output) {
  for (const ipc::FromWorker& message : output.messages) send(message);
  for (const RequestStreams::Ended& e : output.ended)
    engine_->cancel(e.id, static_cast<int>(e.choice), true, SequenceEnd::kNone);
}

void Worker::heartbeat() {
  const EngineCounters& c = engine_->counters();
  ipc::Heartbeat beat;
  beat.engine_turns = c.turns;
  beat.steps = c.steps;
  beat.prompt_tokens = c.prompt_tokens;
  beat.generated_tokens = c.generated_tokens;
  beat.preemptions = c.preemptions;
  beat.swaps = c.swaps;
  beat.pages_swapped = c.pages_swapped;
  beat.batch_limit = c.batch_limit;
  beat.n_running = c.n_running;
  beat.n_waiting = c.n_waiting;
  beat.pages_used = c.pages_used;
  beat.pages_free = c.pages_free;
  beat.pages_shared = c.pages_shared;
  beat.prefill_seconds = c.prefill_seconds;
  beat.decode_seconds = c.decode_seconds;
  beat.sampling_seconds = c.sampling_seconds;
  beat.last_batch = c.last_batch;
  beat.computed_tokens = c.computed_tokens - n_startup_tokens_;
  beat.pages_readopted = c.pages_readopted;
  beat.pages_lent = c.pages_lent;
  if (model_->lent_pools) {
    const LentPools::Counters& lent = model_->lent_pools->counters();
    beat.pages_imported = lent.pages, beat.bytes_imported = lent.bytes, beat.import_seconds = lent.seconds;
  }
  send(beat);
  next_beat_us_ = monotonic_us() + kHeartbeatUs;
}

bool Worker::send(const ipc::FromWorker& message) {
  if (is_channel_gone_) return false;
  is_channel_gone_ = !channel_.send(ipc::encode(message)).ok();
  return !is_channel_gone_;
}

int Worker::stop(int exit_code) {
  if (!is_loaded_) {  // the engine thread may be in the middle of a large file
    log_flush();
    _exit(exit_code);
  }
  stop_ = true;
  mailbox_.close();
  engine_->wake();
  engine_thread_.join();
  pool_thread_.join();
  text_thread_.reset();
  log_info("worker stops", {{"exit_code", exit_code}});
  return exit_code;
}

}  // namespace

int run_worker(const WorkerOptions& options) { return Worker(options).run(); }

}  // namespace tandem
