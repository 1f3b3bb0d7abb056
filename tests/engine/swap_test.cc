// The swap tier: pages that move, sequences that come back, sequences larger than the device.
#include <catch2/catch.hpp>

#include "engine/page_table.h"
#include "engine_harness.h"

namespace tandem {
namespace {

EngineOptions options(int max_batch, int full_pages, int swap_pages) {
  EngineOptions o;
  o.max_batch_size = max_batch;
  o.prefill_chunk_tokens = 16;
  o.context_tokens = 4000;
  o.n_pages = {full_pages, 200};
  o.n_swap_pages = {swap_pages, swap_pages};
  return o;
}
// Admits whoever finds room for the next token, as if nothing were known of answers: what happens when pages run out.
EngineOptions fixed(EngineOptions o) {
  o.adapts_batch_limit = false;
  return o;
}
EngineRequest endless(int n_prompt, uint32_t max_tokens, uint64_t seed = 1, int n_choices = 1, int priority = 1) {
  EngineRequest r = fake_request(n_prompt, max_tokens, seed, n_choices, priority);
  r.sampling.ignore_eos = true;
  return r;
}
EngineHarness::Choice& only(EngineHarness& h, uint64_t id) { return h.entry(id).choices.at(0); }
const std::vector<int> kFull = {0};

}  // namespace

TEST_CASE("pages of two sequences keep being shared through the swap tier and back") {
  PagePool pool({8}, {8});
  std::vector<PageCopy> copies;
  PageTable a(&pool, &kFull, 4), b(&pool, &kFull, 4);
  REQUIRE(a.grow(10));  // two full pages, a partial one
  REQUIRE(b.fork(a, 10, &copies));
  CHECK(pool.n_used() == 4);
  copies.clear();
  REQUIRE(a.swap_out(10, &copies));
  CHECK(copies.size() == 3);
  CHECK((pool.n_swapped() == 3 && pool.n_used() == 3));
  REQUIRE(b.swap_out(10, &copies));  // its full pages are there
  CHECK(copies.size() == 4);
  CHECK((pool.n_swapped() == 4 && pool.n_used() == 0));
  CHECK((a.pages(0)[0] == b.pages(0)[0] && a.pages(0)[1] == b.pages(0)[1] && a.pages(0)[2] != b.pages(0)[2]));
  CHECK(a.n_to_swap_in(0) == 3);
  REQUIRE(a.swap_in(10, &copies));
  CHECK(b.n_to_swap_in(0) == 1);
  REQUIRE(b.swap_in(10, &copies));
  CHECK(copies.size() == 8);
  CHECK((pool.n_swapped() == 0 && pool.n_used() == 4));
  CHECK(a.pages(0)[1] == b.pages(0)[1]);
}

TEST_CASE("swapping out is all or nothing; pages grown but not computed are dropped") {
  PagePool pool({8}, {2});
  std::vector<PageCopy> copies;
  PageTable a(&pool, &kFull, 4);
  REQUIRE(a.grow(12));
  CHECK_FALSE(a.swap_out(9, &copies));
  CHECK((copies.empty() && pool.n_used() == 3 && a.n_entries(0) == 3));
  REQUIRE(a.swap_out(8, &copies));
  CHECK((pool.n_used() == 0 && pool.n_swapped() == 2 && a.n_entries(0) == 2));
}

TEST_CASE("what comes back takes as many pages as the device has, the last ones first") {
  PagePool pool({4}, {4});
  std::vector<PageCopy> copies;
  PageTable a(&pool, &kFull, 4), b(&pool, &kFull, 4);
  REQUIRE(a.grow(16));
  REQUIRE(a.swap_out(16, &copies));
  REQUIRE(b.grow(8));
  CHECK_FALSE(a.swap_in(16, &copies));
  CHECK((pool.is_swapped(0, a.pages(0)[1]) && !pool.is_swapped(0, a.pages(0)[2])));
  CHECK((pool.n_free() == 0 && pool.n_swapped() == 2));
}

TEST_CASE("preempted sequences go to the swap tier and come back before new work; nothing is computed twice") {
  EngineHarness h({}, fixed(options(4, 30, 100)));  // 120 tokens on the device
  std::vector<uint64_t> ids;
  int64_t n_tokens = 0;
  for (uint64_t i = 0; i < 4; ++i) ids.push_back(h.submit(endless(20, 60, i + 1))), n_tokens += 79;
  for (int i = 0; i < 60; ++i) h.turn();
  REQUIRE(h.engine->counters().swaps > 0);
  REQUIRE(h.engine->counters().pages_swapped > 0);
  uint64_t late = h.submit(endless(4, 4, 9));
  h.run_until_idle();
  CHECK(h.engine->counters().preemptions == 0);
  CHECK(h.backend.n_tokens_run == n_tokens + 7);
  CHECK(only(h, late).first_token_turn > only(h, ids[3]).first_token_turn);
  h.check_all_ended();  // texts as alone
}

TEST_CASE("a new request does not pass one that waits in the swap tier") {
  EngineHarness h({}, fixed(options(2, 30, 100)));
  uint64_t a = h.submit(endless(40, 40, 1)), b = h.submit(endless(40, 40, 2));  // 160 tokens wanted, 120 there
  for (int i = 0; h.engine->counters().swaps == 0; ++i) {
    REQUIRE(i < 1000);
    h.turn();
  }
  uint64_t c = h.submit(endless(4, 30, 3));
  while (only(h, a).end == SequenceEnd::kNone) h.turn();
  REQUIRE(only(h, c).first_token_turn < 0);
  size_t before = only(h, b).tokens.size();
  h.turn();
  CHECK(only(h, b).tokens.size() == before + 1);
  h.run_until_idle();
  h.check_all_ended();
}

TEST_CASE("with the swap tier full, the rest is computed again") {
  EngineHarness h({}, fixed(options(4, 30, 8)));
  for (uint64_t i = 0; i < 4; ++i) h.submit(endless(20, 60, i + 1));
  h.run_until_idle();
  CHECK(h.engine->counters().swaps > 0);
  CHECK(h.engine->counters().preemptions > 0);
  h.check_all_ended();
}

TEST_CASE("one sequence exceeds the device by four times, with the same text") {
  for (bool has_cache : {true, false}) {
    EngineOptions o = options(4, 16, 64);  // 64 tokens on the device, 256 beside them
    o.n_pages = {16, 16};
    o.has_prefix_cache = has_cache;
    EngineHarness h({}, o);
    CHECK(h.engine->max_tokens_per_sequence() == 320);
    uint64_t grown = h.submit(endless(10, 246, 1));
    h.run_until_idle();
    CHECK(only(h, grown).tokens.size() == 246);
    uint64_t prompt = h.submit(endless(256, 64, 2));
    uint64_t beside = h.submit(endless(20, 30, 3));
    h.run_until_idle();
    CHECK(only(h, prompt).tokens.size() == 64);
    CHECK(only(h, prompt).end_turn < only(h, beside).first_token_turn);
    h.check_all_ended();
  }
}

TEST_CASE("a large one makes way for a higher class and comes back, through a swap tier full of others") {
  EngineHarness h({}, options(4, 16, 48));
  uint64_t low = h.submit(endless(150, 80, 1, 1, 2));
  for (int i = 0; i < 30; ++i) h.turn();
  uint64_t high = h.submit(endless(30, 30, 2, 1, 0));
  h.turn();
  CHECK(h.engine->counters().preemptions + h.engine->counters().swaps == 1);
  uint64_t high2 = h.submit(endless(30, 30, 3, 1, 0));
  h.run_until_idle();
  CHECK(std::max(only(h, high).end_turn, only(h, high2).end_turn) < only(h, low).end_turn);
  h.check_all_ended();
}

TEST_CASE("a pool of one page") {
  EngineOptions o = options(4, 1, 0);
  o.n_pages = {1, 1};
  o.n_swap_pages = {};
  EngineHarness h({}, o);
  CHECK(h.engine->max_tokens_per_sequence() == 4);
  uint64_t fits = h.submit(endless(3, 9, 1)), too_long = h.submit(endless(4, 9, 2)), also = h.submit(endless(1, 2, 3));
  h.run_until_idle();
  CHECK((only(h, fits).end == SequenceEnd::kPool && only(h, fits).tokens.size() == 1));
  CHECK(only(h, too_long).end == SequenceEnd::kPool);
  CHECK((only(h, also).end == SequenceEnd::kMaxTokens && only(h, also).tokens.size() == 2));
}

TEST_CASE("choices share their prompt's pages again after a preemption, cached or not") {
  for (bool has_cache : {true, false}) {
    for (int swap_pages : {0, 100}) {
      EngineOptions o = options(4, 60, swap_pages);
      o.prefill_chunk_tokens = 64;
      o.has_prefix_cache = has_cache;
      o.adapts_batch_limit = false;
      o.n_pages[1] = 400;
      FakeModel model;
      model.window = 4000;  // pages that left a window could not be shared again
      EngineHarness h(model, o);
      uint64_t low = h.submit(endless(80, 60, 1, 4, 2));  // 20 pages shared, 4 x 15 of their own at the end
      for (int i = 0; i < 5; ++i) h.turn();
      uint64_t high = h.submit(endless(150, 2, 2, 1, 0));  // 38 pages: pushes some out
      while (only(h, high).end == SequenceEnd::kNone) h.turn();
      REQUIRE(h.engine->counters().preemptions + h.engine->counters().swaps > 0);
      int n_turns = 0;
      while (h.engine->counters().n_running < 4 && ++n_turns < 50) h.turn();
      REQUIRE(h.engine->counters().n_running == 4);
      CHECK(h.engine->counters().pages_used - 0 < 2 * (20 + 4 * 6));
      CHECK(h.engine->counters().pages_shared >= 20);
      h.run_until_idle();
      for (auto& [number, choice] : h.entry(low).choices) CHECK(choice.tokens.size() == 60);
      h.check_all_ended();
    }
  }
}

TEST_CASE("above 80 % of the pages nobody is admitted; below, the limit rises again; far fewer are preempted") {
  uint64_t n_preempted[2] = {};
  for (bool adapts : {false, true}) {
    EngineOptions o = options(8, 100, 0);  // 400 tokens
    o.n_swap_pages = {};
    o.adapts_batch_limit = adapts;
    EngineHarness h({}, o);
    for (uint64_t i = 0; i < 60; ++i) h.submit(endless(4, 2, 300 + i));  // answers are short, it seems
    h.run_until_idle();
    uint32_t least = 8;
    for (uint64_t i = 0; i < 60 || !h.is_idle();) {
      if (i < 60 && h.n_turns % 4 == 0) h.submit(endless(14, 60, ++i));  // 19 pages each in the end
      h.turn();
      h.clock.advance_us(20'000);
      least = std::min<uint32_t>(least, h.engine->counters().batch_limit);
    }
    n_preempted[adapts] = h.engine->counters().preemptions;
    CHECK((least < 8) == adapts);
    for (int i = 0; i < 400; ++i) h.turn(), h.clock.advance_us(10'000);
    CHECK(h.engine->counters().batch_limit == 8);
    h.check_all_ended();
  }
  CHECK(n_preempted[false] >= 10);
  CHECK(n_preempted[true] * 2 < n_preempted[false]);
}

TEST_CASE("who is admitted finds room for an answer of the usual length; alone it runs in any case") {
  for (bool adapts : {false, true}) {
    EngineOptions o = options(8, 100, 0);  // 400 tokens: five of the answers below, or one of the last
    o.n_swap_pages = {};
    o.adapts_batch_limit = adapts;
    EngineHarness h({}, o);
    for (uint64_t i = 0; i < 40 || !h.is_idle();) {
      if (i < 40 && h.n_turns % 3 == 0) h.submit(endless(14, 60, ++i));
      h.turn();
      h.clock.advance_us(20'000);
    }
    CHECK((h.engine->counters().preemptions == 0) == adapts);
    for (uint64_t i = 0; i < 3; ++i) h.submit(endless(14, 380, 200 + i));
    h.run_until_idle(10'000);
    h.check_all_ended();
  }
}

TEST_CASE("the prefix cache keeps no more idle pages than its budget, and the least recently used go first") {
  EngineOptions o = options(4, 200, 0);
  o.max_cached_pages = 12;
  EngineHarness h({}, o);
  auto run = [&](uint64_t seed) {
    uint64_t id = h.submit(endless(25, 1, seed));
    h.run_until_idle();
    return h.entry(id).n_cached;
  };
  CHECK(run(1) == 0);
  CHECK(run(2) == 0);
  CHECK(run(1) == 24);
  CHECK(run(3) == 0);   // 6 pages each: 2 makes way
  CHECK(run(1) == 24);
  CHECK(run(2) == 0);
}

}  // namespace tandem
