// The step loop. Everything here runs on the engine thread but submit(), cancel(), wake() and counters().
#include "engine/engine.h"

#include <condition_variable>
#include <mutex>
#include <variant>

#include "engine/scheduler.h"

namespace tandem {
namespace {

// Far above what a supervisor has under way (max_batch_size + 2 requests): hit only by a bug on its side.
constexpr size_t kMaxInbox = 8192;
constexpr auto kIdleSleep = std::chrono::milliseconds(50);  // a sign of life also when idle
constexpr auto kFormingSleep = std::chrono::milliseconds(2);  // while a batch forms

struct CancelCommand {
  uint64_t id;
  int choice;
  bool silently;
  SequenceEnd reason;
};
struct ArriveCommand {
  EngineLoan loan;
  std::vector<int32_t> tokens;
};
struct ReleaseCommand {
  uint64_t id;
};
using Command = std::variant<EngineRequest, CancelCommand, ArriveCommand, ReleaseCommand, WeightSet>;

SchedulerOptions scheduler_options(const EngineOptions& o, const Backend& backend) {
  SchedulerOptions s;
  s.attends_to_swapped = backend.attends_to_swapped();
  s.max_batch_size = o.max_batch_size;
  s.prefill_chunk_tokens = o.prefill_chunk_tokens;
  s.page_size = o.page_size;
  s.context_tokens = o.context_tokens;
  s.ageing_us = o.ageing_us;
  s.has_prefix_cache = o.has_prefix_cache;
  s.n_pages = o.n_pages;
  s.n_swap_pages = o.n_swap_pages;
  s.target_gap_us = o.target_gap_us;
  s.batching = o.batching;
  s.form_us = o.form_us;
  s.adapts_batch_limit = o.adapts_batch_limit;
  s.max_cached_pages = o.max_cached_pages;
  s.ledger = o.ledger;
  s.lean_id = o.lean_id;
  s.has_lean_set = backend.weight_bytes().lean > 0;
  for (const KvGroup& group : backend.config().kv_groups) s.windows.push_back(group.window);
  return s;
}

void add_seconds(std::atomic<double>& counter, double seconds) {
  counter.store(counter.load(std::memory_order_relaxed) + seconds, std::memory_order_relaxed);  // one writer
}

}  // namespace

struct Engine::Impl {
  Impl(Backend* b, EngineOptions o, const Clock* c, std::function<void(EngineEvents)> s)
      : backend(b), options(std::move(o)), clock(c), sink(std::move(s)),
        has_lean_set(b->weight_bytes().lean > 0),
        scheduler(scheduler_options(options, *b)) {}

  void take_inbox();
  void post(Command command);
  bool run_copies(const StepPlan& plan);
  bool run_step(const StepPlan& plan);
  bool backend_failed(const Status& status);
  void account_time(const StepPlan& plan, int64_t forward_us, int64_t sample_us);
  void publish();

  Backend* const backend;
  const EngineOptions options;
  const Clock* const clock;
  const std::function<void(EngineEvents)> sink;
  const bool has_lean_set;
  Scheduler scheduler;
  EngineEvents events;
  std::vector<SampleResult> results;
  std::vector<PageCopy> copies;
  std::vector<Command> taken;
  bool has_failed = false;
  EngineCounters counters;

  std::mutex mutex;  // guards inbox, is_woken
  std::condition_variable arrived;
  std::vector<Command> inbox;
  bool is_woken = false;
};

Engine::Engine(Backend* backend, EngineOptions options, const Clock* clock,
               std::function<void(EngineEvents)> sink)
    : impl_(std::make_unique<Impl>(backend, std::move(options), clock, std::move(sink))) {}
Engine::~Engine() = default;

Status Engine::submit(EngineRequest request) {
  {
    std::lock_guard lock(impl_->mutex);
    if (impl_->inbox.size() >= kMaxInbox)
      return exhausted("the engine's inbox is full: " + std::to_string(kMaxInbox) + " commands wait");
    impl_->inbox.emplace_back(std::move(request));
  }
  impl_->arrived.notify_one();
  return ok_status();
}

void Engine::cancel(uint64_t id, int choice, bool end_silently, SequenceEnd reason) {
  impl_->post(CancelCommand{id, choice, end_silently, reason});
}

void Engine::Impl::post(Command command) {
  {
    std::lock_guard lock(mutex);
    inbox.push_back(std::move(command));
  }
  arrived.notify_one();
}

void Engine::arrive(EngineLoan loan, std::vector<int32_t> tokens) {
  impl_->post(ArriveCommand{std::move(loan), std::move(tokens)});
}

void Engine::release(uint64_t id) { impl_->post(ReleaseCommand{id}); }

Status Engine::set_weights(WeightSet set) {
  if (set == WeightSet::kLean && !impl_->has_lean_set) return unimplemented("these weights have no lean set");
  impl_->post(set);
  return ok_status();
}

void Engine::wake() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->is_woken = true;
  }
  impl_->arrived.notify_one();
}

int Engine::pin(std::span<const int32_t> tokens) { return impl_->scheduler.pin(tokens); }
int Engine::max_tokens_per_sequence() const { return impl_->scheduler.max_tokens_per_sequence(); }
const EngineCounters& Engine::counters() const { return impl_->counters; }

void Engine::Impl::take_inbox() {
  {
    std::lock_guard lock(mutex);
    taken.swap(inbox);
  }
  int64_t now = clock->now_us();
  for (Command& command : taken) {
    if (auto* request = std::get_if<EngineRequest>(&command)) {
      scheduler.add(std::move(*request), now, &events);
    } else if (auto* lent = std::get_if<ArriveCommand>(&command)) {
      scheduler.arrive(lent->loan, lent->tokens, options.source);
    } else if (auto* over = std::get_if<ReleaseCommand>(&command)) {
      scheduler.release(over->id);
    } else if (auto* set = std::get_if<WeightSet>(&command)) {
      scheduler.set_weights(*set);
    } else {
      const auto& c = std::get<CancelCommand>(command);
      scheduler.cancel(c.id, c.choice, c.silently, c.reason, now, &events);
    }
  }
  taken.clear();
}

bool Engine::turn() {
  Impl& m = *impl_;
  if (m.has_failed) return false;
  m.take_inbox();
  int64_t now = m.clock->now_us();
  m.scheduler.expire(now, &m.events);
  const StepPlan& plan = m.scheduler.schedule(now);
  bool has_step = !plan.items.empty() || !plan.copies.empty();
  bool has_moved = m.run_copies(plan);  // a loan that is no good changes the plan: the next turn makes another
  if (m.has_failed) return false;
  m.scheduler.take_loan_news(&m.events);
  if (has_moved && !plan.items.empty() && !m.run_step(plan)) return false;
  m.publish();
  if (!m.events.empty()) {
    m.sink(std::move(m.events));
    m.events = {};
  }
  return has_step;
}

// In the order of the list: pages change hands in it.
bool Engine::Impl::run_copies(const StepPlan& plan) {
  std::vector<std::pair<uint64_t, std::string>> bad;
  for (const PageCopy& copy : plan.copies) {
    if (copy.from >= 0) {
      if (Status status = backend->copy_pages(std::span(&copy, 1)); !status.ok()) return backend_failed(status);
      continue;
    }
    const StepPlan::Import& import = plan.imports[static_cast<size_t>(-1 - copy.from)];
    Status status = options.source->copy(import.source, import.generation, copy.group, import.page, copy.to);
    if (!status.ok()) bad.emplace_back(import.request, status.message());
  }
  for (auto& [id, reason] : bad) scheduler.hand_back(id, false, std::move(reason));
  return bad.empty();
}

bool Engine::Impl::run_step(const StepPlan& plan) {
  int64_t start = clock->now_us();
  if (Status status = backend->forward(plan.batch); !status.ok()) return backend_failed(status);
  int64_t forward_end = clock->now_us();
  results.clear();
  results.resize(plan.samples.size());
  if (!results.empty()) {
    if (Status status = backend->sample(plan.samples, results); !status.ok()) return backend_failed(status);
  }
  account_time(plan, forward_end - start, clock->now_us() - forward_end);
  copies.clear();
  scheduler.commit(results, clock->now_us(), &events, &copies);
  if (!copies.empty()) {
    if (Status status = backend->copy_pages(copies); !status.ok()) return backend_failed(status);
  }
  return true;
}

bool Engine::Impl::backend_failed(const Status& status) {
  has_failed = true;
  if (options.on_backend_error) options.on_backend_error(status);
  return false;
}

// A step that holds both kinds of tokens is split by their numbers.
void Engine::Impl::account_time(const StepPlan& plan, int64_t forward_us, int64_t sample_us) {
  double seconds = static_cast<double>(forward_us) * 1e-6;
  double prefill_share = static_cast<double>(plan.n_prefill_tokens) / static_cast<double>(plan.batch.tokens.size());
  add_seconds(counters.prefill_seconds, seconds * prefill_share);
  add_seconds(counters.decode_seconds, seconds * (1 - prefill_share));
  add_seconds(counters.sampling_seconds, static_cast<double>(sample_us) * 1e-6);
  counters.steps.fetch_add(1, std::memory_order_relaxed);
  counters.last_batch = static_cast<uint32_t>(plan.items.size());
}

void Engine::Impl::publish() {
  const SchedulerCounters& c = scheduler.counters();
  const PagePool& pool = scheduler.pool();
  counters.turns.fetch_add(1, std::memory_order_relaxed);
  counters.prompt_tokens = c.prompt_tokens;
  counters.generated_tokens = c.generated_tokens;
  counters.preemptions = c.preemptions;
  counters.swaps = c.swaps;
  counters.batch_limit = static_cast<uint32_t>(scheduler.batch_limit());
  counters.pages_readopted = c.pages_readopted;
  counters.computed_tokens = c.computed_tokens;
  counters.n_running = static_cast<uint32_t>(scheduler.n_running());
  counters.n_waiting = static_cast<uint32_t>(scheduler.n_waiting());
  counters.pages_used = pool.n_used();
  counters.pages_free = pool.n_free();
  counters.pages_shared = pool.n_shared();
  counters.pages_swapped = pool.n_swapped();
  counters.pages_lent = scheduler.n_pages_lent();
  if (scheduler.is_idle()) counters.last_batch = 0;
}

void Engine::run(const std::atomic<bool>& stop) {
  Impl& m = *impl_;
  while (!stop.load(std::memory_order_acquire)) {
    if (turn()) continue;
    std::unique_lock lock(m.mutex);
    auto sleep = m.scheduler.n_waiting() > 0 ? kFormingSleep : kIdleSleep;
    m.arrived.wait_for(lock, sleep, [&] { return !m.inbox.empty() || m.is_woken; });
    m.is_woken = false;
  }
}

}  // namespace tandem
