#include "simulation.h"

#include <algorithm>
#include <memory>
#include <random>
#include <unordered_map>

#include "admission/dispatch_gate.h"
#include "admission/retry_after.h"
#include "fake_pages.h"

namespace tandem {
namespace {

constexpr size_t kExtraSequences = 2;   // as the dispatcher's
constexpr int64_t kAuditSteps = 512;    // between two looks at all pages of a step
constexpr size_t kMaxFaults = 20;

using End = SimOutcome::End;

// One request under way.
struct Live {
  size_t index = 0;
  uint64_t wire_id = 0;                            // 0: waits in the queue
  int64_t waited_us = 0;
  std::vector<std::vector<int32_t>> generated;     // by choice
  std::vector<uint64_t> history;                   // by choice: of prompt and generated tokens
  std::vector<int64_t> last_token_us;
  std::vector<bool> has_ended;
  int n_unfinished = 0;
};

class Simulation {
 public:
  Simulation(const std::vector<SimRequest>& trace, const SimOptions& options)
      : trace_(trace), options_(options), scheduler_(options.scheduler), queue_(options.limits, &clock_),
        retry_after_(&clock_), pages_(n_all_pages(options.scheduler), options.scheduler.page_size),
        random_(options.seed) {
    const SchedulerOptions& s = options_.scheduler;
    auto batch = static_cast<size_t>(s.max_batch_size);
    gate_.set_limit(s.batching == Batching::kContinuous ? batch + kExtraSequences : 2 * batch);
    report_.outcomes.resize(trace.size());
    clock_.set_us(1);
  }

  SimReport run() {
    while (next_arrival_ < trace_.size() || !live_.empty()) {
      arrive();
      leave();
      dispatch();
      scheduler_.expire(clock_.now_us(), &events_);
      if (!take_step() && !skip_ahead()) break;
      take_events();
      if (report_.faults.size() >= kMaxFaults) break;
    }
    finish();
    return std::move(report_);
  }

 private:
  static int n_all_pages(const SchedulerOptions& o) {
    return o.n_pages.at(0) + (o.n_swap_pages.empty() ? 0 : o.n_swap_pages.at(0));
  }
  void fault(const std::string& what) {
    if (report_.faults.size() < kMaxFaults) report_.faults.push_back(what);
  }
  std::string name(size_t index) const { return "request " + std::to_string(index); }

  void arrive();
  void leave();
  void dispatch();
  void send(Live* r);
  void recall(Live* r);
  bool take_step();
  void check_step(const StepPlan& plan);
  bool skip_ahead();
  void take_events();
  void take_token(const EngineToken& token);
  void end(uint64_t id, End how);
  void finish();
  std::vector<int32_t> prompt_of(size_t index) const;

  const std::vector<SimRequest>& trace_;
  const SimOptions options_;
  FakeClock clock_;
  Scheduler scheduler_;
  AdmissionQueue queue_;
  DispatchGate gate_;
  RetryAfter retry_after_;
  FakePages pages_;
  std::mt19937_64 random_;
  SimReport report_;
  size_t next_arrival_ = 0;
  std::unordered_map<uint64_t, Live> live_;        // by index + 1
  std::unordered_map<uint64_t, uint64_t> by_wire_;
  std::multimap<int64_t, uint64_t> leaving_;       // clients that leave, by time
  uint64_t next_wire_id_ = 1;
  size_t n_requeued_ = 0;
  EngineEvents events_;
  std::vector<SampleResult> results_;
  std::vector<PageCopy> copies_;
  double wasted_ = 0;
  int64_t n_wasted_ = 0;
  bool is_planted_ = false;
};

std::vector<int32_t> Simulation::prompt_of(size_t index) const {
  const SimRequest& r = trace_[index];
  std::vector<int32_t> prompt(static_cast<size_t>(r.n_prompt));
  for (int i = 0; i < r.n_prompt; ++i) {
    uint64_t of = i < r.n_shared ? static_cast<uint64_t>(r.key) : (index + 1) << 20;
    prompt[static_cast<size_t>(i)] = token_after(add_token(of, i));
  }
  return prompt;
}

void Simulation::arrive() {
  for (; next_arrival_ < trace_.size() && trace_[next_arrival_].arrival_us < clock_.now_us(); ++next_arrival_) {
    const SimRequest& r = trace_[next_arrival_];
    uint64_t id = next_arrival_ + 1;
    int64_t at = r.arrival_us + 1;
    WaitingRequest w{id, static_cast<ipc::Priority>(r.priority), std::to_string(r.key), at,
                     r.timeout_us == 0 ? 0 : std::max<int64_t>(1, at + r.timeout_us), 0, -1, r.n_prompt};
    Offer offer = queue_.offer(w);
    if (options_.plant == Plant::kQueueBound && !offer.is_accepted) {
      queue_.requeue(w);  // past the bound
      offer.is_accepted = true;
    }
    SimOutcome& outcome = report_.outcomes[next_arrival_];
    if (!offer.is_accepted) {
      outcome.end = End::kRefused, outcome.end_us = 0;
      outcome.retry_after_s = retry_after_.estimate_s(queue_.size());
      ++report_.n_ends[End::kRefused];
      continue;
    }
    if (queue_.size() > options_.limits.max_queue + n_requeued_)
      fault("the queue holds " + std::to_string(queue_.size()) + " requests, more than its bound");
    Live& live = live_[id];
    live.index = next_arrival_;
    live.n_unfinished = r.n_choices;
    auto n = static_cast<size_t>(r.n_choices);
    live.generated.resize(n), live.last_token_us.resize(n), live.has_ended.resize(n);
    if (r.cancel_us > 0) leaving_.emplace(at + r.cancel_us, id);
    if (offer.displaced) {
      report_.outcomes[*offer.displaced - 1].retry_after_s = retry_after_.estimate_s(queue_.size());
      end(*offer.displaced, End::kDisplaced);
    }
  }
  retry_after_.set_busy(!live_.empty());
}

// Clients that go away, and deadlines of those who wait.
void Simulation::leave() {
  for (uint64_t id : queue_.take_expired()) {
    if (auto it = live_.find(id); it != live_.end()) end(id, End::kDeadline);
  }
  while (!leaving_.empty() && leaving_.begin()->first <= clock_.now_us()) {
    uint64_t id = leaving_.begin()->second;
    leaving_.erase(leaving_.begin());
    if (live_.contains(id)) end(id, End::kCancelled);
  }
}

void Simulation::dispatch() {
  // The planted one stands where it would be next, for ever.
  auto may_run = [&](uint64_t id) { return options_.plant != Plant::kStarvation || id != 5; };
  while (auto id = queue_.next(may_run)) {
    Live& r = live_.at(*id);
    DispatchGate::Decision d =
        gate_.ask(trace_[r.index].priority, static_cast<size_t>(r.n_unfinished));
    if (d.verdict == DispatchGate::Verdict::kWait) return;
    if (d.verdict == DispatchGate::Verdict::kRecall) recall(&live_.at(d.recall));
    else send(&r);
  }
}

void Simulation::send(Live* r) {
  const SimRequest& t = trace_[r->index];
  uint64_t id = r->index + 1;
  WaitingRequest taken = queue_.take(id);
  EngineRequest request;
  request.id = r->wire_id = next_wire_id_++;
  request.prompt = prompt_of(r->index);
  uint64_t history = kEmptyHistory;
  for (int32_t token : request.prompt) history = add_token(history, token);
  if (r->history.empty()) r->history.assign(r->generated.size(), history);
  for (size_t c = 0; c < r->generated.size(); ++c) {
    if (!r->has_ended[c]) request.choices.push_back({static_cast<uint32_t>(c), r->generated[c]});
  }
  request.sampling.ignore_eos = true;
  request.max_tokens = static_cast<uint32_t>(t.n_output);
  request.priority = t.priority;
  request.waited_us = r->waited_us = taken.waited_us;
  request.deadline_us = taken.deadline_us;
  by_wire_[r->wire_id] = id;
  gate_.on_dispatch(id, queue_.effective_class(taken), static_cast<size_t>(r->n_unfinished));
  scheduler_.add(std::move(request), clock_.now_us(), &events_);
}

void Simulation::recall(Live* r) {
  uint64_t id = r->index + 1;
  scheduler_.cancel(r->wire_id, -1, true, SequenceEnd::kCancelled, clock_.now_us(), &events_);
  by_wire_.erase(r->wire_id);
  r->wire_id = 0;
  gate_.on_leave(id);
  ++report_.recalls;
  ++n_requeued_;
  const SimRequest& t = trace_[r->index];
  queue_.requeue({id, static_cast<ipc::Priority>(t.priority), std::to_string(t.key), t.arrival_us + 1,
                  t.timeout_us == 0 ? 0 : std::max<int64_t>(1, t.arrival_us + 1 + t.timeout_us), r->waited_us,
                  clock_.now_us(), t.n_prompt});
}

bool Simulation::take_step() {
  const StepPlan& plan = scheduler_.schedule(clock_.now_us());
  for (const PageCopy& c : plan.copies) pages_.copy(c);
  if (plan.items.empty()) return false;
  double us = options_.latency.step_us(plan.shape);
  if (options_.latency.noise > 0) {
    std::normal_distribution<double> noise(1, options_.latency.noise);
    us *= std::clamp(noise(random_), 0.5, 3.0);
  }
  clock_.advance_us(std::max<int64_t>(1, static_cast<int64_t>(us)));
  results_.clear();
  results_.resize(plan.samples.size());
  ++report_.n_steps;
  if (options_.plant == Plant::kTwoOwners && !is_planted_ && report_.n_steps > 50 && plan.items.size() > 1) {
    const StepItem& victim = plan.batch.items[1];
    if (victim.first_pos % options_.scheduler.page_size > 0) {
      pages_.spoil(victim.page_tables[0][victim.first_pos / options_.scheduler.page_size]);
      is_planted_ = true;
    }
  }
  for (size_t i = 0; i < plan.batch.items.size(); ++i) {
    uint64_t history = pages_.run(plan.batch.items[i], plan.batch.tokens);
    if (i >= plan.items.size()) continue;
    const StepPlan::Item& item = plan.items[i];
    for (int s = item.first_sample; s < item.first_sample + item.n_samples; ++s)
      results_[static_cast<size_t>(s)].token = token_after(history + plan.samples[static_cast<size_t>(s)].choice);
  }
  if (report_.n_steps % kAuditSteps == 0) check_step(plan);
  copies_.clear();
  scheduler_.commit(results_, clock_.now_us(), &events_, &copies_);
  for (const PageCopy& c : copies_) pages_.copy(c);
  return true;
}

void Simulation::check_step(const StepPlan& plan) {
  int64_t room = 0, used = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const StepItem& item = plan.batch.items[i];
    int n = item.first_pos + item.n_tokens, page_size = options_.scheduler.page_size;
    if (!pages_.is_chain(item.page_tables[0], n)) fault("a page of a running sequence has another's content");
    room += int64_t{(n + page_size - 1) / page_size} * page_size;
    used += n;
    for (int p = 0; p * page_size < n; ++p) {
      if (scheduler_.pool().n_holders(0, item.page_tables[0][p]) < 1) fault("a running sequence holds a free page");
    }
  }
  if (room > 0) wasted_ += static_cast<double>(room - used) / static_cast<double>(room), ++n_wasted_;
  for (const auto& [id, r] : live_) {
    if (clock_.now_us() - trace_[r.index].arrival_us > options_.starved_us)
      fault(name(r.index) + " starves: " + std::to_string((clock_.now_us() - trace_[r.index].arrival_us) / 1000000) +
            " s without an end");
  }
}

// Nothing to compute: on to the next arrival, deadline, departure, or the forming of a batch.
bool Simulation::skip_ahead() {
  int64_t now = clock_.now_us(), next = INT64_MAX;
  if (next_arrival_ < trace_.size()) next = std::min(next, trace_[next_arrival_].arrival_us + 2);
  if (auto deadline = queue_.next_deadline_us()) next = std::min(next, *deadline);
  if (!leaving_.empty()) next = std::min(next, leaving_.begin()->first);
  if (scheduler_.n_waiting() > 0 && options_.scheduler.batching != Batching::kContinuous)
    next = std::min(next, now + 1000);
  if (next == INT64_MAX && !events_.empty()) return true;
  if (next == INT64_MAX) return false;
  clock_.set_us(std::max(now + 1, next));
  return true;
}

void Simulation::take_events() {
  EngineEvents events = std::exchange(events_, {});
  for (const EnginePrompt& p : events.prompts) {
    auto it = by_wire_.find(p.id);
    if (it == by_wire_.end()) continue;
    SimOutcome& outcome = report_.outcomes[it->second - 1];
    if (outcome.first_token_us < 0) outcome.n_cached = static_cast<int>(p.n_cached);
  }
  for (const EngineToken& token : events.tokens) {
    take_token(token);
    bool is_double = options_.plant == Plant::kDoubleEnd && !is_planted_ && token.end != SequenceEnd::kNone;
    if (is_double) is_planted_ = true, take_token(token);
  }
  if (options_.plant == Plant::kLeak && !is_planted_ && report_.n_steps > 50)
    is_planted_ = const_cast<PagePool&>(scheduler_.pool()).allocate(0) >= 0;
}

void Simulation::take_token(const EngineToken& token) {
  auto wire = by_wire_.find(token.id);
  if (wire == by_wire_.end()) {
    if (token.end != SequenceEnd::kNone && token.end != SequenceEnd::kCancelled)
      fault("an end of a dispatch that is over (wire id " + std::to_string(token.id) + ")");
    return;
  }
  Live& r = live_.at(wire->second);
  SimOutcome& outcome = report_.outcomes[r.index];
  size_t c = token.choice;
  if (r.has_ended.at(c)) return fault(name(r.index) + " choice " + std::to_string(c) + ": ended twice");
  int64_t now = clock_.now_us();
  if (token.token >= 0) {
    if (token.token != token_after(r.history[c] + c))
      fault(name(r.index) + " choice " + std::to_string(c) + ": token " + std::to_string(token.index) +
            " is not the one that follows from its history: a page was lost, or had two owners");
    r.history[c] = add_token(r.history[c], token.token);
    r.generated[c].push_back(token.token);
    const SimRequest& asked = trace_[r.index];
    queue_.charge(std::to_string(asked.key), static_cast<ipc::Priority>(asked.priority), 1);
    if (outcome.first_token_us < 0) outcome.first_token_us = now - trace_[r.index].arrival_us;
    if (r.last_token_us[c] > 0) outcome.worst_gap_us = std::max(outcome.worst_gap_us, now - r.last_token_us[c]);
    r.last_token_us[c] = now;
    ++report_.n_tokens;
  }
  if (token.end == SequenceEnd::kNone) return;
  r.has_ended[c] = true;
  gate_.on_choice_end(wire->second);
  if (token.end == SequenceEnd::kMaxTokens && r.generated[c].size() != static_cast<size_t>(trace_[r.index].n_output))
    fault(name(r.index) + " ended with " + std::to_string(r.generated[c].size()) + " tokens");
  if (--r.n_unfinished > 0) return;
  if (token.end != SequenceEnd::kDeadline) retry_after_.on_completion();
  end(wire->second, token.end == SequenceEnd::kDeadline ? End::kDeadline : End::kDone);
}

void Simulation::end(uint64_t id, End how) {
  Live& r = live_.at(id);
  SimOutcome& outcome = report_.outcomes[r.index];
  if (outcome.end != End::kNone) fault(name(r.index) + ": ended twice");
  outcome.end = how;
  outcome.end_us = clock_.now_us() - trace_[r.index].arrival_us;
  ++report_.n_ends[how];
  if (r.wire_id != 0) {
    if (r.n_unfinished > 0)
      scheduler_.cancel(r.wire_id, -1, true, SequenceEnd::kCancelled, clock_.now_us(), &events_);
    // A planted second end must find its dispatch to be told from one that is merely late.
    if (options_.plant != Plant::kDoubleEnd) by_wire_.erase(r.wire_id);
    gate_.on_leave(id);
  }
  queue_.remove(id);
  if (options_.plant == Plant::kDoubleEnd && how == End::kDone) return;
  live_.erase(id);
}

void Simulation::finish() {
  for (auto it = live_.begin(); it != live_.end();) {  // kept for the planted second end
    it = report_.outcomes[it->second.index].end != End::kNone ? live_.erase(it) : std::next(it);
  }
  for (const auto& [id, r] : live_) fault(name(r.index) + " starves: all others have ended");
  if (live_.empty() && !scheduler_.is_idle()) fault("the scheduler is not idle after the last end");
  scheduler_.schedule(clock_.now_us());  // lets go of ended lanes
  if (live_.empty() && scheduler_.pool().n_used() + scheduler_.pool().n_swapped() != 0)
    fault(std::to_string(scheduler_.pool().n_used()) + " pages of the pool and " +
          std::to_string(scheduler_.pool().n_swapped()) + " of the swap tier leaked");
  for (size_t i = 0; i < report_.outcomes.size() && report_.faults.size() < kMaxFaults; ++i) {
    if (report_.outcomes[i].end == End::kNone && !live_.contains(i + 1)) fault(name(i) + " never ended");
  }
  report_.seconds = static_cast<double>(clock_.now_us()) / 1e6;
  report_.preemptions = scheduler_.counters().preemptions;
  report_.swaps = scheduler_.counters().swaps;
  report_.wasted_share = n_wasted_ > 0 ? wasted_ / static_cast<double>(n_wasted_) : 0;
}

}  // namespace

SimReport simulate(const std::vector<SimRequest>& trace, const SimOptions& options) {
  return Simulation(trace, options).run();
}

}  // namespace tandem
