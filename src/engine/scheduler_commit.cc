// Accounting: requests come in, steps are booked, sequences end. The only code that changes tokens.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/scheduler.h"

namespace tandem {
namespace {

constexpr double kAnswersMeant = 16;  // that the mean length of answers looks back on
constexpr const char* kNotFinite =
    "the model produced numbers that are not finite; its file or this computer's memory may be damaged";

bool is_finite(const SampleResult& r) {
  bool ok = r.token >= 0 && std::isfinite(r.chosen.logprob);
  for (const TokenLogprob& t : r.top) ok = ok && std::isfinite(t.logprob);
  return ok;
}

}  // namespace

void Scheduler::add(EngineRequest request, int64_t now_us, EngineEvents* events) {
  arrivals_.erase(request.id);
  if (requests_.contains(request.id) || loans_.contains(request.id)) {
    log_error("engine request ignored: id in use", {{"request_id", request.id}});
    return;
  }
  uint64_t id = request.id;
  if (request.loan) {
    if (std::string fault = loan_fault(request); !fault.empty()) {
      returns_.push_back({id, false, std::move(fault)});
      return;
    }
  }
  auto& state = *(requests_[id] = std::make_unique<RequestState>());
  state.request = std::move(request);
  EngineRequest& r = state.request;
  state.arrival = next_arrival_++;
  state.n_prompt_logprobs = static_cast<int>(std::min<size_t>(r.n_prompt_logprobs_known, r.prompt.size()));
  if (r.loan) state.n_prompt_reported = static_cast<int>(r.prompt.size()), state.has_computed = true;
  for (EngineRequest::Choice& choice : r.choices) {
    auto s = std::make_unique<Sequence>(&state, &pool_, &options_.windows, options_.page_size);
    s->choice = choice.choice;
    s->waited_us = r.waited_us;
    s->generated = std::move(choice.generated);
    int n_tokens = static_cast<int>(r.prompt.size() + s->generated.size());
    if (options_.has_lean_set && !s->generated.empty()) {
      s->weights = WeightSpans(std::move(choice.weight_borders), n_tokens - 1);
      state.prompt_weights = s->weights.first(static_cast<int>(r.prompt.size()));
    }
    s->state = Sequence::State::kForking;
    state.forking.push_back(s.get());
    state.sequences.push_back(std::move(s));
    ++state.n_unfinished;
  }
  r.choices.clear();
  for (const auto& s : state.sequences) {
    // A prompt that is only scored needs no room for a token.
    int n_least = r.hands_off ? s->n_wanted() : s->n_tokens() + (r.max_tokens > 0 ? 1 : 0);
    if (r.loan && s->generated.empty()) {
      end(s.get(), SequenceEnd::kFailed, "the prompt is lent, but a choice has no token yet", events);
    } else if (r.prompt.empty()) {
      end(s.get(), SequenceEnd::kFailed, "the prompt is empty", events);
    } else if (r.max_tokens > 0 && s->generated.size() >= r.max_tokens) {
      end(s.get(), SequenceEnd::kMaxTokens, "", events);
    } else if (n_least > limit_) {
      end(s.get(), length_end(*s), "", events);
    }
  }
  pass_on_lead(&state, now_us);
  if (state.sequences.empty()) finished_.push_back(id);
  forget_finished();
}

void Scheduler::cancel(uint64_t id, int choice, bool silently, SequenceEnd reason, int64_t now_us,
                       EngineEvents* events) {
  if (choice < 0) arrivals_.erase(id), release(id);
  auto it = requests_.find(id);
  if (it == requests_.end()) return;
  for (const auto& s : it->second->sequences) {
    if (s->state == Sequence::State::kEnded) continue;
    if (choice >= 0 && s->choice != static_cast<uint32_t>(choice)) continue;
    if (silently) {
      retire(s.get());
    } else {
      end(s.get(), reason, "", events);
    }
  }
  pass_on_lead(it->second.get(), now_us);
  forget_finished();
}

void Scheduler::expire(int64_t now_us, EngineEvents* events) {
  for (const auto& [id, state] : requests_) {
    int64_t deadline = state->request.deadline_us;
    if (deadline == 0 || now_us < deadline) continue;
    for (const auto& s : state->sequences) {
      if (s->state != Sequence::State::kEnded) end(s.get(), SequenceEnd::kDeadline, "", events);
    }
  }
  forget_finished();
}

void Scheduler::commit(std::span<const SampleResult> results, int64_t now_us, EngineEvents* events,
                       std::vector<PageCopy>* copies) {
  CHECK(results.size() == plan_.samples.size());
  step_cost_[static_cast<size_t>(plan_.batch.weights)].observe(plan_.shape, static_cast<double>(now_us - step_start_us_));
  counters_.computed_tokens += static_cast<uint64_t>(plan_.n_prefill_tokens);
  for (size_t i = 0; i < plan_.items.size(); ++i) {
    const StepPlan::Item& item = plan_.items[i];
    Sequence* s = item.sequence;
    bool was_in_prompt = s->n_computed < static_cast<int>(s->request->request.prompt.size());
    s->n_computed += plan_.batch.items[i].n_tokens;
    s->weights.record(s->n_computed, plan_.batch.weights);
    s->request->has_computed = true;
    publish(s);
    if (s->request->request.hands_off) lend_blocks(s, events);
    s->pages.leave_windows(s->n_computed);
    if (!was_in_prompt) continue;
    WeightSpans& of_prompt = s->request->prompt_weights;
    if (s->weights.n_recorded() > of_prompt.n_recorded()) of_prompt = s->weights.first(static_cast<int>(s->request->request.prompt.size()));
    report_prompt(*s, results, item, events);
    bool is_prompt_done = s->n_computed >= static_cast<int>(s->request->request.prompt.size());
    if (is_prompt_done && s->request->request.hands_off) {
      s->request->lent = std::make_unique<PageTable>(&pool_, &options_.windows, options_.page_size);
      s->request->lent->take(&s->pages);
      handing_off_.push_back(s->request);
    } else if (is_prompt_done && s->request->leader == s) fork_waiting_choices(s->request, now_us, copies);
  }
  for (size_t i = 0; i < plan_.draws.size(); ++i) {
    const StepPlan::Draw& draw = plan_.draws[i];
    if (draw.sequence->state == Sequence::State::kEnded) continue;
    if (draw.prompt_position == 0) {
      take_token(draw.sequence, results[i], events);
    } else if (!is_finite(results[i])) {
      RequestState* request = draw.sequence->request;
      for (const auto& s : request->sequences) {
        if (s->state != Sequence::State::kEnded) end(s.get(), SequenceEnd::kFailed, kNotFinite, events);
      }
    }
  }
  for (RequestState* request : std::exchange(handing_off_, {})) {
    if (request->n_unfinished > 0) hand_off(request, events);
  }
  for (const StepPlan::Item& item : plan_.items) {  // prompts that were only scored
    RequestState* request = item.sequence->request;
    if (request->request.max_tokens > 0 || request->n_unfinished == 0) continue;
    if (item.sequence->n_computed < item.sequence->n_tokens()) continue;
    for (const auto& s : request->sequences) {
      if (s->state != Sequence::State::kEnded) end(s.get(), SequenceEnd::kMaxTokens, "", events);
    }
  }
  plan_.clear();
  forget_finished();
}

// A choice whose prompt is lent takes all of its request back when it must give way: so it joins only if it finds room for
// the tokens it has and one more. Else choices that do not fit together would go to and fro without a token.
bool Scheduler::has_room_to_fork(const Sequence& s) const {
  if (!s.request->request.loan) return true;
  const int n_shared = static_cast<int>(s.request->request.prompt.size()) / options_.page_size;
  for (int g = 0; g < pool_.n_groups(); ++g) {
    int available = pool_.n_free(g);
    for (const Sequence* r : running_) available -= pages_promised(*r, g);
    if (available < pages_needed(s, g, 0) - (options_.windows[g] == 0 ? n_shared : 0)) return false;
  }
  return true;
}

// The prompt is computed: its other choices take their pages, or wait to compute it for themselves.
void Scheduler::fork_waiting_choices(RequestState* request, int64_t now_us, std::vector<PageCopy>* copies) {
  if (request->request.max_tokens == 0) return;  // all end with the prompt
  int n_prompt = static_cast<int>(request->request.prompt.size());
  std::vector<Sequence*> forking = std::move(request->forking);
  request->forking.clear();
  for (Sequence* s : forking) {
    if (s->weights.n_recorded() < n_prompt) s->weights = request->leader->weights.first(n_prompt);
    bool agrees = s->weights.agrees_with(request->leader->weights, n_prompt, wanted_);
    bool has_place = n_running() < options_.max_batch_size && agrees;
    if (has_place && has_room_to_fork(*s) && s->pages.fork(request->leader->pages, n_prompt, copies)) {
      s->n_computed = n_prompt;
      s->published = request->leader->published;
      s->is_imported = request->leader->is_imported;
      s->state = Sequence::State::kRunning;
      s->waited_us = request->leader->waited_us;
      s->batch = request->leader->batch;
      running_.push_back(s);
    } else {
      s->batch = request->leader->batch;
      wait(s, now_us);
      ++counters_.preemptions;
    }
  }
}

void Scheduler::report_prompt(const Sequence& s, std::span<const SampleResult> results,
                              const StepPlan::Item& item, EngineEvents* events) {
  RequestState& r = *s.request;
  int n_prompt = static_cast<int>(r.request.prompt.size());
  EnginePrompt report;
  for (int i = item.first_sample; i < item.first_sample + item.n_samples; ++i) {
    if (plan_.draws[i].prompt_position == 0) continue;
    if (report.logprobs.empty()) report.first_logprob = static_cast<uint32_t>(plan_.draws[i].prompt_position);
    report.logprobs.push_back(results[i]);
    r.n_prompt_logprobs = plan_.draws[i].prompt_position;
  }
  int n_done = std::min(s.n_computed, n_prompt);
  if (n_done <= r.n_prompt_reported && report.logprobs.empty()) return;  // computed again
  counters_.prompt_tokens += static_cast<uint64_t>(std::max(0, n_done - r.n_prompt_reported));
  r.n_prompt_reported = std::max(r.n_prompt_reported, n_done);
  report.id = r.request.id;
  report.n_done = static_cast<uint32_t>(r.n_prompt_reported);
  report.n_total = static_cast<uint32_t>(n_prompt);
  report.n_cached = static_cast<uint32_t>(r.n_cached);
  report.weight_borders = s.weights.first(r.n_prompt_reported).borders();
  events->prompts.push_back(std::move(report));
}

void Scheduler::take_token(Sequence* s, const SampleResult& result, EngineEvents* events) {
  const EngineRequest& r = s->request->request;
  bool has_logprob = r.n_top_logprobs >= 0;
  if (result.token < 0 || (has_logprob && !is_finite(result))) {
    end(s, SequenceEnd::kFailed, kNotFinite, events);
    return;
  }
  bool is_end = std::find(r.end_tokens.begin(), r.end_tokens.end(), result.token) != r.end_tokens.end();
  if (is_end && !r.sampling.ignore_eos) {
    keep_lane(s);
    end(s, SequenceEnd::kEndToken, "", events);
    events->tokens.back().weights = plan_.batch.weights;
    return;
  }
  EngineToken event;
  event.id = r.id;
  event.choice = s->choice;
  event.index = static_cast<uint32_t>(s->generated.size());
  event.token = result.token;
  event.weights = plan_.batch.weights;
  event.has_logprob = has_logprob;
  if (has_logprob) event.chosen = result.chosen, event.top = result.top;
  s->generated.push_back(result.token);
  ++counters_.generated_tokens;
  event.end = length_end(*s);
  events->tokens.push_back(std::move(event));
  if (events->tokens.back().end == SequenceEnd::kNone) return;
  keep_lane(s);
  retire(s);
}

SequenceEnd Scheduler::length_end(const Sequence& s) const {
  uint32_t max_tokens = s.request->request.max_tokens;
  if (max_tokens > 0 && s.generated.size() >= max_tokens) return SequenceEnd::kMaxTokens;
  // Who hands off knows nothing of the decoder's pool.
  if (s.n_tokens() < (s.request->request.hands_off ? options_.context_tokens : limit_)) return SequenceEnd::kNone;
  return s.n_tokens() >= options_.context_tokens ? SequenceEnd::kContext : SequenceEnd::kPool;
}

// Ends a sequence with an event of its own.
void Scheduler::end(Sequence* s, SequenceEnd reason, std::string error, EngineEvents* events) {
  EngineToken event;
  event.id = s->request->request.id;
  event.choice = s->choice;
  event.index = static_cast<uint32_t>(s->generated.size());
  event.end = reason;
  event.error = std::move(error);
  events->tokens.push_back(std::move(event));
  if (reason == SequenceEnd::kFailed) {
    cache_.distrust(s->pages);
    if (s->request->lent) cache_.distrust(*s->request->lent);
  }
  retire(s);
}

void Scheduler::retire(Sequence* s) {
  RequestState* r = s->request;
  if (const auto n = static_cast<double>(s->generated.size()); n > 0 && !r->request.hands_off)
    usual_answer_ += (n - usual_answer_) / kAnswersMeant;
  std::erase(running_, s);
  std::erase(waiting_, s);
  std::erase(r->forking, s);
  if (r->leader == s) r->leader = nullptr;
  s->pages.clear();
  s->state = Sequence::State::kEnded;
  if (--r->n_unfinished == 0) finished_.push_back(r->request.id);
  note_imports(r);
}

// Without a leader, the first choice that still waits to fork computes the prompt.
void Scheduler::pass_on_lead(RequestState* request, int64_t now_us) {
  if (request->leader != nullptr || request->forking.empty()) return;
  Sequence* s = request->forking.front();
  request->forking.erase(request->forking.begin());
  request->leader = s;
  if (s->weights.n_recorded() < request->prompt_weights.n_recorded()) s->weights = request->prompt_weights;
  wait(s, now_us);
}

void Scheduler::wait(Sequence* s, int64_t now_us) {
  if (s->state == Sequence::State::kRunning) std::erase(running_, s);
  s->state = Sequence::State::kWaiting;
  s->waiting_since_us = now_us;
  waiting_.push_back(s);
}

void Scheduler::forget_finished() {
  for (uint64_t id : finished_) requests_.erase(id);
  finished_.clear();
  if (requests_.empty()) lanes_.clear();
}

}  // namespace tandem
