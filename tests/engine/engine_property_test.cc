// Random arrivals, cancels, priorities, deadlines and resumes over small pools: no page leaked or written by
// two, nobody starves, each choice ends once, texts independent of batching, chunking and preemption.
#include <catch2/catch.hpp>
#include <mutex>
#include <random>
#include <thread>

#include "engine_harness.h"

namespace tandem {
namespace {

struct Load {
  int max_batch, chunk, full_pages, window_pages;
  int n_steps;
  bool has_prefix_cache = true;
  int full_swap = 0, window_swap = 0;
  Batching batching = Batching::kContinuous;
  int switch_every = 0;  // steps between two orders of a set of weights, about; 0: none
};

// Borders of the sets that computed n positions, at most three.
std::vector<uint32_t> random_borders(std::mt19937& rng, int n) {
  std::vector<uint32_t> borders;
  for (auto at = rng() % 8; at < static_cast<size_t>(n) && borders.size() < 3; at += 1 + rng() % 30)
    borders.push_back(static_cast<uint32_t>(at));
  return borders;
}

EngineRequest random_request(std::mt19937& rng, const EngineHarness& h, bool has_two_sets) {
  auto upto = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  EngineRequest r = fake_request(1 + upto(upto(4) == 0 ? 90 : 25), static_cast<uint32_t>(upto(30)), rng(),
                                 upto(5) == 0 ? 1 + upto(4) : 1, upto(3));
  if (upto(3) == 0) {  // a further turn: what one of five requests said, and something new
    EngineRequest before = fake_request(5 + upto(30), static_cast<uint32_t>(upto(20)), rng() % 5);
    before.sampling.ignore_eos = true;
    FakeText said = fake_text(h.model, before, 0, h.limit, h.options.context_tokens);
    before.prompt.insert(before.prompt.end(), said.tokens.begin(), said.tokens.end());
    std::copy_n(before.prompt.begin(), std::min(before.prompt.size(), r.prompt.size()), r.prompt.begin());
  }
  r.sampling.ignore_eos = upto(2) == 0;
  if (upto(8) == 0) r.deadline_us = h.clock.now_us() + 1 + upto(40'000);
  if (upto(6) == 0) {
    r.prompt_logprobs = true, r.n_top_logprobs = 0;
    r.n_prompt_logprobs_known = static_cast<uint32_t>(upto(static_cast<int>(r.prompt.size())));
  }
  if (upto(4) == 0 && r.max_tokens > 0) {  // resumed
    // Choices have the prompt in common.
    std::vector<uint32_t> borders;
    if (has_two_sets && upto(2) == 0) borders = random_borders(rng, static_cast<int>(r.prompt.size()));
    for (EngineRequest::Choice& c : r.choices) {
      c.weight_borders = borders;
      FakeText text = fake_text(h.model, r, c.choice, h.limit, h.options.context_tokens, WeightSpans(borders, 200));
      c.generated.assign(text.tokens.begin(), text.tokens.begin() + upto(static_cast<int>(text.tokens.size()) + 1));
    }
  }
  return r;
}

void run_load(const Load& load, uint32_t seed) {
  EngineOptions o;
  o.max_batch_size = load.max_batch;
  o.prefill_chunk_tokens = load.chunk;
  o.context_tokens = 110;
  o.n_pages = {load.full_pages, load.window_pages};
  o.ageing_us = 200'000;
  o.has_prefix_cache = load.has_prefix_cache;
  o.n_swap_pages = {load.full_swap, load.window_swap};
  o.batching = load.batching;
  o.form_us = 8000;
  o.adapts_batch_limit = seed % 2 == 0;
  EngineHarness h({}, o);
  std::mt19937 rng(seed);
  int64_t n_shared_seen = 0, n_submitted = 0;
  const unsigned switch_every = static_cast<unsigned>(load.switch_every);
  for (int step = 0; step < load.n_steps; ++step) {
    const EngineCounters& c = h.engine->counters();
    if (c.n_waiting < 6 && rng() % 3 == 0) h.submit(random_request(rng, h, switch_every > 0)), ++n_submitted;
    if (switch_every > 0 && rng() % switch_every == 0)
      REQUIRE(h.engine->set_weights(rng() % 2 == 0 ? WeightSet::kLean : WeightSet::kFull).ok());
    if (rng() % 200 == 0 && !h.entries.empty()) {
      auto it = std::next(h.entries.begin(), rng() % h.entries.size());
      if (rng() % 2 == 0) h.cancel(it->first);
      else h.silence(it->first, it->second.choices.begin()->first);
    }
    h.turn();
    h.clock.advance_us(1000);
    n_shared_seen += c.pages_shared > 0;
    if (step % 64 == 0) {
      for (const auto& [id, e] : h.entries) {
        // 18 places or fewer ahead, each at most 110 tokens: an order of magnitude of room.
        if (h.n_turns - e.submit_turn > 20'000) FAIL("request " << id << " starves");
      }
    }
    h.check_all_ended();
  }
  h.run_until_idle();
  h.check_all_ended();
  CHECK(h.entries.empty());
  CHECK(h.n_checked_tokens > load.n_steps / 3);
  CHECK(n_submitted > load.n_steps / 100);
  CHECK((n_shared_seen > 0 || load.max_batch == 1 || load.full_pages == 1));  // alone in the batch nobody forks
  CHECK((h.engine->counters().preemptions + h.engine->counters().swaps > 0 || load.batching != Batching::kContinuous));
  if (load.full_swap == 0) CHECK(h.engine->counters().swaps == 0);
  if (load.full_swap > 0 && load.batching == Batching::kContinuous) CHECK(h.engine->counters().swaps > 0);
  if (switch_every > 0) {
    CHECK(h.n_mixed > n_submitted / 20);
    CHECK(h.backend.n_steps_of[1] > load.n_steps / 5);
    CHECK(h.backend.n_steps_of[0] > load.n_steps / 5);
  } else {
    CHECK(h.backend.n_steps_of[1] == 0);
  }
  if (!load.has_prefix_cache) CHECK(h.n_cached_tokens == 0);
  if (load.has_prefix_cache && load.full_pages >= 25) CHECK(h.n_cached_tokens > n_submitted / 4);
  for (SequenceEnd end : {SequenceEnd::kEndToken, SequenceEnd::kMaxTokens, SequenceEnd::kCancelled,
                          SequenceEnd::kDeadline})
    CHECK(h.n_ends[end] > 0);
  CHECK(h.n_ends[(load.full_pages + load.full_swap) * 4 < 110 ? SequenceEnd::kPool : SequenceEnd::kContext] > 0);
}

}  // namespace

TEST_CASE("a million random steps keep every promise") {
  // max_batch, chunk, pages of the full group, pages of the windowed group, steps
  const Load loads[] = {
      {4, 16, 40, 40, 300'000},   // pages run out all the time
      {4, 16, 25, 200, 200'000},  // the pool is smaller than the context
      {8, 7, 90, 60, 200'000},    // odd chunks
      {2, 64, 30, 24, 200'000},   // whole prompts in one chunk, a tight window group
      {1, 1, 30, 30, 100'000},    // one by one
      {4, 16, 200, 30, 100'000},  // windows lose pages that the other group still has
      {4, 16, 40, 40, 100'000, false},
      {4, 16, 40, 40, 200'000, true, 30, 30},   // swapped out and back
      {4, 16, 40, 40, 100'000, false, 200, 30},  // room for all, and nothing cached
      {4, 16, 8, 30, 100'000, true, 24, 8},     // sequences four times the device
      {2, 5, 1, 10, 50'000, true, 30, 30},      // a device of one page
      {4, 16, 40, 40, 100'000, true, 12, 12, Batching::kDynamic},
      {4, 16, 40, 40, 100'000, true, 12, 12, Batching::kStatic},
      {4, 16, 40, 40, 100'000, false, 12, 12, Batching::kStaticPadded},
      // Two sets of weights, switched every now and then, and nearly every step.
      {4, 16, 40, 40, 200'000, true, 0, 0, Batching::kContinuous, 40},
      {4, 16, 40, 40, 100'000, false, 0, 0, Batching::kContinuous, 20},
      {4, 16, 25, 200, 100'000, true, 0, 0, Batching::kContinuous, 3},
      {8, 7, 90, 60, 100'000, true, 0, 0, Batching::kContinuous, 15},
      {1, 1, 30, 30, 50'000, true, 0, 0, Batching::kContinuous, 40},
      {4, 16, 40, 40, 100'000, true, 30, 30, Batching::kContinuous, 20},
      {4, 16, 8, 30, 50'000, true, 24, 8, Batching::kContinuous, 30},
      {4, 16, 40, 40, 50'000, true, 12, 12, Batching::kStatic, 20},
  };
  uint32_t seed = 1;
  for (const Load& load : loads) {
    INFO("batch " << load.max_batch << " chunk " << load.chunk << " pages " << load.full_pages << ", "
                  << load.window_pages);
    run_load(load, seed++);
  }
}

TEST_CASE("the engine thread serves submits and cancels from other threads") {
  FakeModel model;
  FakeBackend backend(model);
  EngineOptions o;
  o.max_batch_size = 4, o.prefill_chunk_tokens = 16, o.context_tokens = 110, o.n_pages = {60, 60};
  o.page_size = model.page_size;
  REQUIRE(backend.reserve_pages(o.n_pages).ok());
  Clock clock;
  std::mutex mutex;  // guards n_ended, texts
  int n_ended = 0;
  std::map<uint64_t, std::vector<int32_t>> texts;
  Engine engine(&backend, o, &clock, [&](EngineEvents events) {
    std::lock_guard lock(mutex);
    for (const EngineToken& t : events.tokens) {
      if (t.token >= 0) texts[t.id].push_back(t.token);
      n_ended += t.end != SequenceEnd::kNone;
    }
  });
  std::atomic<bool> stop{false};
  std::thread runner([&] { engine.run(stop); });
  constexpr uint64_t kRequests = 200;
  auto request = [](uint64_t id) {
    EngineRequest r = fake_request(10 + static_cast<int>(id % 30), 20, id);
    r.id = id;
    return r;
  };
  std::thread canceller([&] {
    for (uint64_t id = 1; id <= kRequests; id += 2) engine.cancel(id, -1, false, SequenceEnd::kCancelled);
  });
  for (uint64_t id = 1; id <= kRequests; ++id) REQUIRE(engine.submit(request(id)).ok());
  canceller.join();
  for (uint64_t id = 1; id <= kRequests; id += 2) engine.cancel(id, -1, false, SequenceEnd::kCancelled);
  int64_t give_up = monotonic_us() + 60'000'000;
  for (;;) {
    {
      std::lock_guard lock(mutex);
      if (n_ended == kRequests) break;
    }
    REQUIRE(monotonic_us() < give_up);
    std::this_thread::yield();
  }
  stop = true;
  engine.wake();
  runner.join();
  CHECK(backend.fault.empty());
  CHECK(engine.counters().pages_used == 0);
  for (uint64_t id = 2; id <= kRequests; id += 2) CHECK(texts[id] == fake_text(model, request(id), 0, 110, 110).tokens);
}

}  // namespace tandem
