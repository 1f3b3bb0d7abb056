// Two sets of weights: a switch keeps the K/V, what is computed again takes the set it had, and the prefix cache tells
// them apart. (The property test switches at random.)
#include <catch2/catch.hpp>

#include "engine/prefix_cache.h"
#include "engine_harness.h"

namespace tandem {
namespace {

EngineOptions options(int n_pages) {
  EngineOptions o;
  o.max_batch_size = 4, o.prefill_chunk_tokens = 16, o.context_tokens = 400;
  o.n_pages = {n_pages, n_pages};
  return o;
}
EngineRequest endless(int n_prompt, uint32_t max_tokens, uint64_t seed) {
  EngineRequest r = fake_request(n_prompt, max_tokens, seed);
  r.sampling.ignore_eos = true;
  return r;
}
size_t n_tokens(EngineHarness& h, uint64_t id) { return h.entry(id).choices.at(0).tokens.size(); }
void run_until(EngineHarness& h, uint64_t id, size_t n) {
  for (int i = 0; i < 10'000 && n_tokens(h, id) < n; ++i) h.turn();
  REQUIRE(n_tokens(h, id) == n);
}

}  // namespace

TEST_CASE("spans say which set computed a position, and what the next one takes") {
  const WeightSet full = WeightSet::kFull, lean = WeightSet::kLean;
  WeightSpans s;
  CHECK((s.at(0, lean) == lean && s.run(0, lean) == INT_MAX && !s.has_lean()));
  s.record(5, full), s.record(7, lean), s.record(6, full), s.record(9, lean), s.record(12, full);
  CHECK(s.borders() == std::vector<uint32_t>{5, 9});
  CHECK(s.n_recorded() == 12);
  CHECK((s.at(4, lean) == full && s.at(5, full) == lean && s.at(8, full) == lean && s.at(9, lean) == full));
  CHECK((s.at(12, lean) == lean && s.at(12, full) == full));
  CHECK((s.run(0, full) == 5 && s.run(5, full) == 4 && s.run(9, lean) == 3 && s.run(9, full) == INT_MAX));
  CHECK(s.first(9).borders() == std::vector<uint32_t>{5});
  CHECK(s.first(5).borders().empty());
  WeightSpans t = s.first(7);
  CHECK((t.agrees_with(s, 7, full) && t.agrees_with(s, 9, lean) && !t.agrees_with(s, 9, full) && !t.agrees_with(s, 10, lean)));
  WeightSpans u;
  u.record(3, lean);
  CHECK(u.borders() == std::vector<uint32_t>{0});
  CHECK(WeightSpans({0, 4, 9}, 4).borders() == std::vector<uint32_t>{0});
}

TEST_CASE("of an earlier life only what the same lean set computed is found again; the full set's always") {
  struct Notes : PageLedger {
    std::vector<SealedPage> sealed;
    void on_taken(int, PageId) override {}
    void on_freed(int, PageId) override {}
    void on_sealed(int group, PageId page, const SealedBlock& b) override {
      sealed.push_back({group, page, b.key, b.serial, b.parent, b.index, {b.tokens.begin(), b.tokens.end()}});
    }
    void on_unsealed(int, PageId) override {}
    uint32_t serial(int, PageId) const override { return 0; }
    std::vector<SealedPage> sealed_pages() override { return sealed; }
    bool verify(int, PageId) override { return true; }
  } notes;
  const std::vector<int> windows = {0};
  const std::vector<int32_t> a = {1, 2, 3, 4}, b = {5, 6, 7, 8};
  {
    PagePool pool({8});
    PrefixCache cache(&pool, &windows, 4, 64, &notes, 11);
    auto full = PrefixCache::Chain::start(0), lean = full;
    REQUIRE(cache.add_block(&full, a, {pool.allocate(0)}, WeightSet::kFull));
    REQUIRE(cache.add_block(&lean, a, {pool.allocate(0)}, WeightSet::kLean));
    REQUIRE(cache.add_block(&lean, b, {pool.allocate(0)}, WeightSet::kLean));
  }
  REQUIRE(notes.sealed.size() == 3);
  for (const auto& [lean_id, n_found] : {std::pair{uint64_t{11}, 3}, {uint64_t{12}, 1}, {uint64_t{0}, 1}}) {
    CAPTURE(lean_id);
    PagePool pool({8});
    PrefixCache cache(&pool, &windows, 4, 64, &notes, lean_id);
    CHECK(cache.restore() == n_found);
    auto full = PrefixCache::Chain::start(0), lean = full;
    CHECK(cache.follow(&full, a, WeightSet::kFull));
    CHECK(cache.follow(&lean, a, WeightSet::kLean) == (n_found == 3));
  }
}

TEST_CASE("a switch keeps the K/V, goes on with the next step and is told token by token") {
  EngineHarness h({}, options(200));
  uint64_t a = h.submit(endless(20, 60, 1));
  h.submit(endless(9, 60, 2));
  run_until(h, a, 10);
  int64_t n_run = h.backend.n_tokens_run;
  REQUIRE(h.engine->set_weights(WeightSet::kLean).ok());
  run_until(h, a, 20);
  REQUIRE(h.engine->set_weights(WeightSet::kFull).ok());
  run_until(h, a, 30);
  CHECK(h.backend.n_tokens_run - n_run == 40);  // 20 turns of two decodes: nothing was computed twice
  CHECK(h.backend.n_steps_of[1] == 10);
  // The first prompt takes two steps, so its token 0 is drawn from position 19 in the second.
  CHECK(h.entry(a).choices.at(0).weights.borders() == std::vector<uint32_t>{29, 39});
  h.run_until_idle();
  h.check_all_ended();
  CHECK(h.n_mixed == 2);
}

TEST_CASE("who lost its pages is computed again with the sets it had, beside those of the other set") {
  EngineHarness h({}, options(24));
  uint64_t low = h.submit([] { EngineRequest r = endless(30, 60, 3); r.priority = 2; return r; }());
  run_until(h, low, 10);
  REQUIRE(h.engine->set_weights(WeightSet::kLean).ok());
  run_until(h, low, 20);
  uint64_t high = h.submit([] { EngineRequest r = endless(60, 30, 4); r.priority = 0; return r; }());
  run_until(h, high, 1);
  CHECK(h.engine->counters().preemptions == 1);
  CHECK(n_tokens(h, low) < 25);
  h.run_until_idle();
  CHECK(h.entry(low).choices.at(0).weights.borders() == std::vector<uint32_t>{39});
  CHECK(h.entry(high).choices.at(0).weights.borders() == std::vector<uint32_t>{0});
  CHECK(h.backend.n_steps_of[0] > 12);  // the low one's first positions once more
  h.check_all_ended();
}

TEST_CASE("both sets move on while some compute old positions again and others go on") {
  EngineHarness h({}, options(200));
  REQUIRE(h.engine->set_weights(WeightSet::kLean).ok());
  uint64_t stream = h.submit(endless(8, 200, 5));
  run_until(h, stream, 5);
  EngineRequest resumed = endless(160, 60, 6);
  FakeText said = fake_text(h.model, resumed, 0, h.limit, h.options.context_tokens);
  resumed.choices[0].generated.assign(said.tokens.begin(), said.tokens.begin() + 40);
  uint64_t id = h.submit(resumed);  // 199 positions of the full set: 13 steps
  size_t before = n_tokens(h, stream);
  int n_turns = 0;
  for (; n_tokens(h, id) == 40; ++n_turns) h.turn();
  CHECK(n_turns <= 28);
  CHECK(n_tokens(h, stream) - before >= static_cast<size_t>(n_turns / 2));
  h.run_until_idle();
  CHECK(h.entry(id).choices.at(0).weights.borders() == std::vector<uint32_t>{199});
  h.check_all_ended();
}

TEST_CASE("the prefix cache finds what the same set computed, and no page that both did") {
  EngineHarness h({}, options(400));
  auto run = [&](WeightSet set, int n_prompt) {
    REQUIRE(h.engine->set_weights(set).ok());
    uint64_t id = h.submit(endless(n_prompt, 4, 7));
    h.run_until_idle();
    uint32_t n = h.entry(id).n_cached;
    h.check_all_ended();
    return n;
  };
  CHECK(run(WeightSet::kFull, 42) == 0);
  CHECK(run(WeightSet::kLean, 42) == 0);
  CHECK(run(WeightSet::kLean, 42) == 40);
  CHECK(run(WeightSet::kFull, 42) == 40);
  // Switched within the prompt: 16 positions full, the rest lean. The first four pages are found by those who go on
  // like that, the others by nobody who begins with another set.
  EngineHarness g({}, options(400));
  uint64_t id = g.submit(endless(46, 4, 8));
  g.turn();
  REQUIRE(g.engine->set_weights(WeightSet::kLean).ok());
  g.run_until_idle();
  CHECK(g.entry(id).prompt_weights.borders() == std::vector<uint32_t>{16});
  g.check_all_ended();
  id = g.submit(endless(46, 4, 8));
  g.run_until_idle();
  CHECK(g.entry(id).n_cached == 0);
  g.check_all_ended();
  REQUIRE(g.engine->set_weights(WeightSet::kFull).ok());
  id = g.submit(endless(46, 4, 8));
  g.run_until_idle();
  CHECK(g.entry(id).n_cached == 16);
  g.check_all_ended();
}

TEST_CASE("without a lean set the order is refused, and spans of another backend are let go") {
  struct OneSet : FakeBackend {
    using FakeBackend::FakeBackend;
    WeightBytes weight_bytes() const override { return {2, 0}; }
  };
  FakeModel model;
  OneSet backend(model);
  EngineOptions o = options(100);
  o.page_size = model.page_size;
  REQUIRE(backend.reserve_pages(o.n_pages).ok());
  FakeClock clock;
  std::vector<int32_t> got;
  Engine engine(&backend, o, &clock, [&](EngineEvents e) {
    for (const EngineToken& t : e.tokens) {
      if (t.token >= 0) got.push_back(t.token);
    }
  });
  Status refused = engine.set_weights(WeightSet::kLean);
  CHECK(refused.code() == StatusCode::kUnimplemented);
  CHECK(refused.message() == "these weights have no lean set");
  CHECK(engine.set_weights(WeightSet::kFull).ok());
  EngineRequest r = endless(20, 20, 9);
  FakeText text = fake_text(model, r, 0, 400, 400);
  r.id = 1;
  r.choices[0].generated.assign(text.tokens.begin(), text.tokens.begin() + 5);
  r.choices[0].weight_borders = {3, 9};
  REQUIRE(engine.submit(r).ok());
  for (int i = 0; i < 100; ++i) engine.turn();
  CHECK(got == std::vector<int32_t>(text.tokens.begin() + 5, text.tokens.end()));
  CHECK(backend.fault.empty());
}

}  // namespace tandem
