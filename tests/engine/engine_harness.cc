#include "engine_harness.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace tandem {

EngineHarness::EngineHarness(FakeModel m, EngineOptions o) : model(m), options(std::move(o)), backend(m) {
  options.page_size = model.page_size;
  std::vector<int> n_all = options.n_pages;
  for (size_t g = 0; g < options.n_swap_pages.size(); ++g) n_all[g] += options.n_swap_pages[g];
  REQUIRE(backend.reserve_pages(n_all).ok());
  engine = std::make_unique<Engine>(&backend, options, &clock, [this](EngineEvents e) { take(e); });
  for (int n : options.n_pages) n_pages_total_ += n;
  limit = std::min(options.context_tokens, n_all[0] * model.page_size);
}

uint64_t EngineHarness::submit(EngineRequest request) {
  uint64_t id = request.id = next_id_++;
  Entry& e = entries[id];
  e.request = request;
  e.submit_turn = n_turns;
  for (const EngineRequest::Choice& c : request.choices) {
    Choice& choice = e.choices[c.choice];
    choice.tokens = c.generated;
    if (!c.generated.empty())
      choice.weights = WeightSpans(c.weight_borders, static_cast<int>(request.prompt.size() + c.generated.size()) - 1);
  }
  REQUIRE(engine->submit(std::move(request)).ok());
  return id;
}

void EngineHarness::cancel(uint64_t id) {
  entry(id).is_cancelled = true;
  engine->cancel(id, -1, false, SequenceEnd::kCancelled);
}

void EngineHarness::silence(uint64_t id, uint32_t choice) {
  Entry& e = entry(id);
  Choice& c = e.choices.at(choice);
  if (c.end != SequenceEnd::kNone) return;
  engine->cancel(id, static_cast<int>(choice), true, SequenceEnd::kNone);
  c.is_silenced = true;
  note_end(e, c, SequenceEnd::kCancelled);
}

bool EngineHarness::turn() {
  ++n_turns;
  bool has_worked = engine->turn();
  if (!backend.fault.empty()) FAIL("turn " << n_turns << ": " << backend.fault);
  const EngineCounters& c = engine->counters();
  if (c.pages_used + c.pages_free != n_pages_total_) FAIL("turn " << n_turns << ": pages leaked");
  if (backend.max_items_seen > options.max_batch_size) FAIL("batch larger than allowed");
  return has_worked;
}

bool EngineHarness::is_idle() const {
  return engine->counters().n_running == 0 && engine->counters().n_waiting == 0;
}

void EngineHarness::run_until_idle(int max_turns) {
  do turn(); while (!is_idle() && --max_turns > 0);
  REQUIRE(is_idle());
  CHECK(engine->counters().pages_used == n_pinned_pages);
  CHECK(engine->counters().pages_shared == n_pinned_twice);
  CHECK(engine->counters().pages_swapped == 0);
}

void EngineHarness::take(const EngineEvents& events) {
  for (const EnginePrompt& p : events.prompts) {
    auto it = entries.find(p.id);
    if (it == entries.end()) FAIL("progress of an unknown request");
    Entry& e = it->second;
    if (p.n_done < e.n_prompt_done || p.n_done > p.n_total || p.n_total != e.request.prompt.size())
      FAIL("progress goes back or too far");
    bool is_first = e.n_prompt_done == 0;
    if (p.n_cached >= p.n_done || p.n_cached % static_cast<uint32_t>(model.page_size) != 0)
      FAIL("no such hit: " << p.n_cached << " of " << p.n_total);
    if (!is_first && p.n_cached != e.n_cached) FAIL("the hit changed on the way");
    if (p.n_cached > 0 && (e.request.prompt_logprobs || !options.has_prefix_cache)) FAIL("a hit that was forbidden");
    if (is_first) e.n_cached = p.n_cached, n_cached_tokens += p.n_cached;
    e.n_prompt_done = p.n_done;
    WeightSpans before = e.prompt_weights;
    e.prompt_weights = WeightSpans(p.weight_borders, static_cast<int>(p.n_done));
    if (!before.agrees_with(e.prompt_weights, before.n_recorded(), WeightSet::kFull)) FAIL("the prompt changed its sets");
    if (p.logprobs.empty()) continue;
    if (p.first_logprob != e.request.n_prompt_logprobs_known + e.prompt_logprobs.size() + 1)
      FAIL("prompt log-probabilities are not continuous");
    for (const SampleResult& r : p.logprobs) e.prompt_logprobs.push_back(r.chosen.logprob);
  }
  for (const EngineToken& token : events.tokens) take_token(token);
}

void EngineHarness::take_token(const EngineToken& token) {
  auto it = entries.find(token.id);
  if (it == entries.end()) FAIL("event of an unknown or ended request " << token.id);
  Entry& e = it->second;
  Choice& c = e.choices.at(token.choice);
  if (c.is_silenced) {
    // Tokens of the step in flight may still come; nothing may come after the next turn took the cancel.
    if (n_turns > c.end_turn + 1) FAIL("event of a silenced choice");
    return;
  }
  if (c.end != SequenceEnd::kNone) FAIL("event after the end of request " << token.id);
  if (token.index != c.tokens.size()) FAIL("index " << token.index << ", expected " << c.tokens.size());
  if (token.token >= 0) {
    int n_prompt = static_cast<int>(e.request.prompt.size());
    if (c.weights.n_recorded() == 0) c.weights = e.prompt_weights.first(n_prompt);
    if (token.index == 0 && c.weights.at(n_prompt - 1, WeightSet::kFull) != token.weights) FAIL("a first token of another set");
    c.weights.record(n_prompt + static_cast<int>(token.index), token.weights);
    c.tokens.push_back(token.token);
    if (c.first_token_turn < 0) c.first_token_turn = n_turns;
    if (token.has_logprob != (e.request.n_top_logprobs >= 0)) FAIL("log-probability missing or not asked for");
  } else if (token.end == SequenceEnd::kNone) {
    FAIL("neither token nor end");
  }
  if (token.token < 0 && token.end == SequenceEnd::kEndToken) c.last_weights = token.weights;
  if (token.end != SequenceEnd::kNone) note_end(e, c, token.end);
}

void EngineHarness::note_end(Entry& e, Choice& c, SequenceEnd end) {
  c.end = end;
  c.end_turn = n_turns;
  ++n_ends[end];
  bool all = std::all_of(e.choices.begin(), e.choices.end(),
                         [](const auto& x) { return x.second.end != SequenceEnd::kNone; });
  if (all) ended.push_back(e.request.id);
}

void EngineHarness::check_and_forget(uint64_t id) {
  Entry& e = entry(id);
  const EngineRequest& r = e.request;
  for (const auto& [number, c] : e.choices) {
    WeightSpans weights = c.weights.n_recorded() == 0 ? e.prompt_weights : c.weights;
    if (c.last_weights == WeightSet::kLean || weights.has_lean()) weights.record(weights.n_recorded() + 1, c.last_weights);
    FakeText expected = fake_text(model, r, number, limit, options.context_tokens, weights);
    n_mixed += !weights.borders().empty() && weights.borders()[0] > 0;
    bool is_whole = c.end == SequenceEnd::kEndToken || c.end == SequenceEnd::kMaxTokens ||
                    c.end == SequenceEnd::kContext || c.end == SequenceEnd::kPool;
    if (is_whole && (c.end != expected.end || c.tokens != expected.tokens))
      FAIL("request " << id << " choice " << number << ": another text or end than alone");
    if (!is_whole && (c.tokens.size() > expected.tokens.size() ||
                      !std::equal(c.tokens.begin(), c.tokens.end(), expected.tokens.begin())))
      FAIL("request " << id << " choice " << number << ": not a prefix of its text");
    if (c.end == SequenceEnd::kCancelled && !e.is_cancelled && !c.is_silenced) FAIL("cancelled by nobody");
    if (c.end == SequenceEnd::kDeadline && (r.deadline_us == 0 || clock.now_us() < r.deadline_us))
      FAIL("deadline before its time");
    if (c.end == SequenceEnd::kFailed) FAIL("failed");
    n_checked_tokens += static_cast<int64_t>(c.tokens.size());
    bool was_done_at_once = std::any_of(r.choices.begin(), r.choices.end(), [&](const auto& x) {
      bool has_no_room = static_cast<int>(r.prompt.size() + x.generated.size()) >= limit;
      return r.max_tokens > 0 && (x.generated.size() >= r.max_tokens || has_no_room);
    });
    if (is_whole && r.prompt_logprobs && !was_done_at_once && static_cast<int>(r.prompt.size()) < limit &&
        e.prompt_logprobs.size() + r.n_prompt_logprobs_known + 1 != r.prompt.size())
      FAIL("request " << id << ": prompt log-probabilities missing");
  }
  for (size_t i = 0; i < e.prompt_logprobs.size(); ++i) {
    int pos = static_cast<int>(r.n_prompt_logprobs_known + i) + 1;
    if (e.prompt_logprobs[i] != fake_prompt_logprob(model, r.prompt, pos, e.prompt_weights)) FAIL("wrong prompt log-probability");
  }
  entries.erase(id);
}

void EngineHarness::check_all_ended() {
  for (uint64_t id : std::exchange(ended, {})) check_and_forget(id);
}

std::vector<int32_t> fake_prompt(int n_tokens, uint64_t seed) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < n_tokens; ++i) prompt.push_back(static_cast<int32_t>((seed * 31 + i * 7 + i * i) % 58) + 1);
  return prompt;
}

EngineRequest fake_request(int n_prompt, uint32_t max_tokens, uint64_t seed, int n_choices, int priority) {
  EngineRequest r;
  r.prompt = fake_prompt(n_prompt, seed);
  for (int c = 0; c < n_choices; ++c) r.choices.push_back({static_cast<uint32_t>(c), {}});
  r.max_tokens = max_tokens;
  r.sampling.seed = seed;
  r.priority = priority;
  r.end_tokens = {kFakeEndToken};
  return r;
}

}  // namespace tandem
