// Policy, one rule a case. The random tests of everything together are in engine_property_test.cc.
#include <catch2/catch.hpp>

#include "engine/page_table.h"
#include "engine_harness.h"

namespace tandem {
namespace {

EngineOptions options(int max_batch, int chunk, int full_pages, int window_pages = 200) {
  EngineOptions o;
  o.max_batch_size = max_batch;
  o.prefill_chunk_tokens = chunk;
  o.context_tokens = 4000;
  o.n_pages = {full_pages, window_pages};
  return o;
}
EngineRequest endless(int n_prompt, uint32_t max_tokens, uint64_t seed = 1, int n_choices = 1, int priority = 1) {
  EngineRequest r = fake_request(n_prompt, max_tokens, seed, n_choices, priority);
  r.sampling.ignore_eos = true;
  return r;
}
EngineHarness::Choice& only(EngineHarness& h, uint64_t id) { return h.entry(id).choices.at(0); }

}  // namespace

TEST_CASE("a running stream gets a token in every step while long prompts are computed") {
  EngineHarness h({}, options(4, 32, 1000));
  uint64_t stream = h.submit(endless(5, 200));
  h.turn();
  uint64_t a = h.submit(endless(1500, 2, 2));
  uint64_t b = h.submit(endless(1500, 2, 3));
  for (int i = 0; i < 90; ++i) {
    size_t before = only(h, stream).tokens.size();
    h.turn();
    REQUIRE(only(h, stream).tokens.size() == before + 1);
  }
  CHECK(h.backend.max_tokens_seen == 34);  // the budget is for prompts, beside the decodes (stream and a)
  CHECK(only(h, a).first_token_turn > 0);  // 1500 / 32 = 47 steps
  CHECK(only(h, a).first_token_turn < 52);
  h.run_until_idle();
  CHECK(only(h, b).end == SequenceEnd::kMaxTokens);
  h.check_all_ended();
}

TEST_CASE("prompts run by priority, then by age") {
  EngineHarness h({}, options(8, 16, 1000));
  uint64_t first = h.submit(endless(64, 1, 1, 1, 1));
  h.turn();
  uint64_t low = h.submit(endless(32, 1, 2, 1, 2));
  uint64_t normal = h.submit(endless(32, 1, 3, 1, 1));
  uint64_t high = h.submit(endless(32, 1, 4, 1, 0));
  h.run_until_idle();
  CHECK(only(h, high).end_turn < only(h, first).end_turn);
  CHECK(only(h, first).end_turn < only(h, normal).end_turn);
  CHECK(only(h, normal).end_turn < only(h, low).end_turn);
}

TEST_CASE("high priority jumps a full batch; the paused one loses nothing (C-32)") {
  EngineHarness h({}, options(4, 64, 4000));
  std::vector<uint64_t> low;
  for (uint64_t i = 0; i < 4; ++i) low.push_back(h.submit(endless(20, 300, i + 1, 1, 2)));
  for (int i = 0; i < 50; ++i) h.turn();
  REQUIRE(h.engine->counters().n_running == 4);
  uint64_t high = h.submit(endless(20, 20, 9, 1, 0));
  h.turn();
  CHECK(only(h, high).first_token_turn == h.n_turns);
  CHECK(h.engine->counters().preemptions == 1);
  CHECK(h.engine->counters().n_waiting == 1);
  h.run_until_idle();
  CHECK(only(h, high).end_turn <= 50 + 21);
  for (uint64_t id : low) CHECK(only(h, id).tokens.size() == 300);
  h.check_all_ended();  // texts as alone
}

TEST_CASE("the same class never preempts for a place") {
  EngineHarness h({}, options(2, 64, 4000));
  for (uint64_t i = 0; i < 5; ++i) h.submit(endless(20, 50, i + 1, 1, 1));
  h.run_until_idle();
  CHECK(h.engine->counters().preemptions == 0);
  CHECK(h.backend.max_items_seen == 2);
}

TEST_CASE("waiting pushes nobody out: a queue longer than the ageing time costs no preemption") {
  EngineOptions o = options(4, 64, 4000);
  o.ageing_us = 100'000;
  EngineHarness h({}, o);
  for (uint64_t i = 0; i < 40; ++i) h.submit(endless(20, i % 10 == 0 ? 200 : 8, i + 1, 1, 1));
  while (h.turn()) h.clock.advance_us(10'000);  // the last ones wait for twenty times as long as lifts them
  CHECK(h.engine->counters().preemptions == 0);
  h.check_all_ended();
}

TEST_CASE("high priority passes one that waiting has lifted by pushing out who runs, and takes no free place before it") {
  EngineOptions o = options(2, 64, 4000);
  o.ageing_us = 1'000'000;
  EngineHarness h({}, o);
  const uint64_t first = h.submit(endless(20, 60, 1, 1, 1)), second = h.submit(endless(20, 300, 2, 1, 1));
  const uint64_t aged = h.submit(endless(20, 20, 3, 1, 2));
  for (int i = 0; i < 20; ++i) h.turn();
  h.clock.advance_us(2'500'000);
  const uint64_t high = h.submit(endless(20, 100, 4, 1, 0));
  h.turn();
  CHECK(only(h, high).first_token_turn == h.n_turns);
  CHECK(h.engine->counters().preemptions == 1);
  CHECK(only(h, aged).tokens.empty());  // it pushes out neither
  h.run_until_idle();
  for (uint64_t id : {first, second, aged}) CHECK(only(h, id).end == SequenceEnd::kMaxTokens);
  h.check_all_ended();
}

TEST_CASE("a place that becomes free goes to whom waiting has lifted, not to a younger one of high priority") {
  EngineOptions o = options(1, 64, 4000);
  o.ageing_us = 1'000'000;
  EngineHarness h({}, o);
  h.submit(endless(20, 30, 1, 1, 0));
  const uint64_t aged = h.submit(endless(20, 20, 2, 1, 2));
  for (int i = 0; i < 10; ++i) h.turn();
  h.clock.advance_us(2'500'000);
  const uint64_t high = h.submit(endless(20, 20, 3, 1, 0));
  h.run_until_idle();
  CHECK(only(h, aged).first_token_turn < only(h, high).first_token_turn);
  h.check_all_ended();
}

TEST_CASE("low priority finishes under an endless stream of high ones") {
  EngineOptions o = options(2, 64, 4000);
  o.ageing_us = 1'000'000;
  EngineHarness h({}, o);
  uint64_t low = h.submit(endless(30, 100, 77, 1, 2));
  int turns = 0;
  for (uint64_t i = 0; only(h, low).end == SequenceEnd::kNone; ++i) {
    if (i % 5 == 0) h.submit(endless(20, 20, i + 1, 1, 0));  // 20 steps of work each 5 steps, 2 places
    h.turn();
    h.clock.advance_us(10'000);
    REQUIRE(++turns < 2000);  // 2 classes of ageing = 200 steps, then its 100 tokens and those before it
  }
  CHECK(only(h, low).tokens.size() == 100);
  h.run_until_idle();
  h.check_all_ended();
}

TEST_CASE("when pages run out the youngest of the lowest class is preempted, computed again, never drawn again") {
  EngineOptions o = options(3, 64, 30);  // 120 tokens
  o.adapts_batch_limit = false;          // else nobody is admitted whose answer would find no room
  EngineHarness h({}, o);
  uint64_t old_low = h.submit(endless(20, 40, 1, 1, 2));
  uint64_t high = h.submit(endless(20, 40, 2, 1, 0));
  uint64_t young_low = h.submit(endless(20, 40, 3, 1, 2));
  h.run_until_idle();
  CHECK(h.engine->counters().preemptions > 0);
  CHECK(h.engine->counters().generated_tokens == 120);  // nothing counted twice
  CHECK(h.engine->counters().prompt_tokens == 60);
  CHECK(only(h, high).end_turn <= only(h, old_low).end_turn);
  CHECK(only(h, old_low).end_turn < only(h, young_low).end_turn);
  h.check_all_ended();
}

TEST_CASE("one that does not fit yet is not passed by younger ones of its class for ever") {
  EngineHarness h({}, options(8, 64, 40));  // 160 tokens
  uint64_t a = h.submit(endless(60, 40, 1));
  h.turn();
  uint64_t big = h.submit(endless(100, 5, 2));
  std::vector<uint64_t> small;
  for (uint64_t i = 0; i < 5; ++i) small.push_back(h.submit(endless(8, 5, i + 3)));
  h.run_until_idle();
  for (uint64_t id : small) CHECK(only(h, big).first_token_turn <= only(h, id).first_token_turn);
  CHECK(only(h, a).end_turn < only(h, big).first_token_turn);
  h.check_all_ended();
}

TEST_CASE("what can never fit ends at once, and the others run (C-28, C-29)") {
  EngineHarness h({}, options(4, 64, 16));  // 64 tokens
  CHECK(h.limit == 64);
  for (int round = 0; round < 20; ++round) {
    for (int n_prompt : {62, 63, 64, 65, 275}) {
      for (uint32_t max_tokens : {0u, 1u, 9u}) {
        uint64_t id = h.submit(endless(n_prompt, max_tokens, static_cast<uint64_t>(n_prompt)));
        uint64_t normal = h.submit(endless(6, 5, 5));
        h.run_until_idle(2000);
        INFO("prompt " << n_prompt << " max_tokens " << max_tokens);
        bool fits = n_prompt + (max_tokens > 0 ? 1 : 0) <= 64;
        uint32_t room = n_prompt < 64 ? static_cast<uint32_t>(64 - n_prompt) : 0;
        CHECK(only(h, id).tokens.size() == (fits ? std::min(max_tokens, room) : 0));
        CHECK(only(h, id).end == (fits && max_tokens <= room ? SequenceEnd::kMaxTokens : SequenceEnd::kPool));
        CHECK(only(h, normal).tokens.size() == 5);
      }
    }
  }
  h.check_all_ended();
}

TEST_CASE("the context limit ends a sequence as such") {
  EngineOptions o = options(4, 64, 1000);
  o.context_tokens = 50;
  EngineHarness h({}, o);
  uint64_t id = h.submit(endless(40, 100));
  h.run_until_idle();
  CHECK(only(h, id).tokens.size() == 10);
  CHECK(only(h, id).end == SequenceEnd::kContext);
}

TEST_CASE("choices share the pages of their prompt and copy only the partial one") {
  EngineHarness h({}, options(8, 64, 400));
  uint64_t id = h.submit(endless(42, 30, 5, 4));
  h.turn();
  CHECK(h.engine->counters().prompt_tokens == 42);  // computed once
  CHECK(h.engine->counters().pages_shared == 10 + 6);  // group 0: 0..39; group 1 (window 24): 16..39
  CHECK(h.backend.n_copies == 3 * 2);
  for (auto& [n, c] : h.entry(id).choices) CHECK(c.first_token_turn == 1);
  h.run_until_idle();
  std::set<std::vector<int32_t>> texts;
  for (auto& [n, c] : h.entry(id).choices) texts.insert(c.tokens);
  CHECK(texts.size() == 4);
  h.check_all_ended();
}

TEST_CASE("more choices than places still end, all of them") {
  EngineHarness h({}, options(3, 64, 60));
  h.submit(endless(41, 20, 5, 8));
  h.submit(endless(9, 20, 6, 2));
  h.run_until_idle();
  CHECK(h.n_ends[SequenceEnd::kMaxTokens] == 10);
  h.check_all_ended();
}

TEST_CASE("a windowed group holds its window only") {
  EngineHarness h({.window = 8}, options(2, 4, 1000, 10));
  h.submit(endless(300, 100));
  while (!h.is_idle() || h.n_turns == 0) {
    h.turn();
    int64_t full = h.backend.last_batch.items[0].first_pos / 4 + 2;
    CHECK(h.engine->counters().pages_used <= full + peak_pages(8, 4, 400, 4));
    if (h.is_idle()) break;
  }
  CHECK(h.n_ends[SequenceEnd::kMaxTokens] == 1);
  h.check_all_ended();
}

TEST_CASE("a resumed choice continues where it was; its tokens are not told again") {
  EngineHarness h({}, options(8, 16, 400));
  EngineRequest r = endless(42, 30, 5, 3);
  for (EngineRequest::Choice& c : r.choices) {
    FakeText text = fake_text(h.model, r, c.choice, h.limit, h.options.context_tokens);
    c.generated.assign(text.tokens.begin(), text.tokens.begin() + c.choice * 13);
  }
  uint64_t id = h.submit(r);
  h.run_until_idle();  // the harness checks indices; then texts:
  for (auto& [n, c] : h.entry(id).choices) CHECK(c.tokens.size() == 30);
  CHECK(h.engine->counters().generated_tokens == 90 - 39);
  h.check_all_ended();

  r.choices = {{2, fake_text(h.model, r, 2, h.limit, 4000).tokens}};  // all was known but the end
  uint64_t done = h.submit(r);
  h.run_until_idle();
  CHECK(h.entry(done).choices.at(2).end == SequenceEnd::kMaxTokens);
  h.check_all_ended();
}

TEST_CASE("scoring a prompt gives every position once, also when resumed, and no token") {
  for (uint32_t known : {0u, 70u, 199u}) {
    EngineHarness h({}, options(4, 100, 400));
    EngineRequest r = endless(200, 0);
    r.prompt_logprobs = true;
    r.n_top_logprobs = 0;
    r.n_prompt_logprobs_known = known;
    uint64_t id = h.submit(r);
    h.run_until_idle();
    CHECK(only(h, id).tokens.empty());
    CHECK(only(h, id).end == SequenceEnd::kMaxTokens);
    CHECK(h.entry(id).prompt_logprobs.size() == 199 - known);
    CHECK(h.engine->counters().prompt_tokens == 200);
    h.check_all_ended();
  }
}

TEST_CASE("deadline and cancel free the pages in the next turn, in every state") {
  for (bool by_deadline : {false, true}) {
    for (int turns_before : {0, 1, 3, 12}) {  // queued, chunk 1 and 3 of 7, decoding
      EngineHarness h({}, options(4, 16, 400));
      EngineRequest r = endless(100, 1000, 1, 2);
      if (by_deadline) r.deadline_us = 1000;
      uint64_t id = h.submit(r);
      for (int i = 0; i < turns_before; ++i) h.turn();
      if (by_deadline) h.clock.set_us(1000);
      else h.cancel(id);
      h.turn();
      CHECK(h.is_idle());
      CHECK(h.engine->counters().pages_used == 0);
      CHECK(h.n_ends[by_deadline ? SequenceEnd::kDeadline : SequenceEnd::kCancelled] == 2);
      h.check_all_ended();
      h.cancel(h.submit(endless(5, 5)));
      h.engine->cancel(12345, -1, false, SequenceEnd::kCancelled);  // unknown: nothing
      h.run_until_idle();
    }
  }
}

TEST_CASE("a silenced leader passes the prompt on to the next choice") {
  for (int turns_before : {0, 2}) {
    EngineHarness h({}, options(4, 16, 400));
    uint64_t id = h.submit(endless(100, 10, 1, 3));
    for (int i = 0; i < turns_before; ++i) h.turn();
    h.silence(id, 0);
    h.run_until_idle();
    CHECK(h.entry(id).choices.at(1).tokens.size() == 10);
    CHECK(h.entry(id).choices.at(2).tokens.size() == 10);
    h.check_all_ended();
  }
}

TEST_CASE("numbers that are not finite fail their sequence only") {
  EngineHarness h({}, options(4, 64, 400));
  uint64_t good = h.submit(endless(10, 20, 1));
  EngineRequest bad = endless(10, 20, 2, 2);
  bad.prompt[4] = kFakeNanToken;
  uint64_t failed = h.submit(bad);
  EngineRequest scored = bad;
  scored.max_tokens = 0, scored.prompt_logprobs = true, scored.n_top_logprobs = 0;
  uint64_t failed_score = h.submit(scored);
  h.run_until_idle();
  CHECK(h.entry(failed).choices.at(0).end == SequenceEnd::kFailed);
  CHECK(h.entry(failed).choices.at(1).end == SequenceEnd::kFailed);
  CHECK(only(h, failed_score).end == SequenceEnd::kFailed);
  CHECK(only(h, good).tokens.size() == 20);
  h.check_and_forget(good);
}

TEST_CASE("an empty prompt fails, a request without choices leaves nothing behind") {
  EngineHarness h({}, options(4, 64, 400));
  uint64_t empty = h.submit(endless(0, 5));
  h.submit(endless(5, 5, 1, 0));
  h.run_until_idle();
  CHECK(only(h, empty).end == SequenceEnd::kFailed);
}

TEST_CASE("a failing backend is reported once and stops the engine") {
  EngineOptions o = options(4, 64, 400);
  std::vector<Status> errors;
  o.on_backend_error = [&](const Status& s) { errors.push_back(s); };
  EngineHarness h({}, o);
  h.submit(endless(10, 20, 1));
  h.turn();
  h.backend.next_forward = internal_error("broken");
  CHECK_FALSE(h.turn());
  CHECK_FALSE(h.turn());
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].message() == "broken");
}

}  // namespace tandem
