#include "engine/prefix_cache.h"

#include <catch2/catch.hpp>
#include <memory>
#include <random>

#include "engine_harness.h"

namespace tandem {
namespace {

constexpr int kPage = 4;

EngineOptions options(int full_pages = 400, int window_pages = 400) {
  EngineOptions o;
  o.max_batch_size = 8, o.prefill_chunk_tokens = 16, o.context_tokens = 1000;
  o.n_pages = {full_pages, window_pages};
  return o;
}
EngineRequest endless(std::vector<int32_t> prompt, uint32_t max_tokens, int n_choices = 1) {
  EngineRequest r = fake_request(1, max_tokens, 1, n_choices);
  r.prompt = std::move(prompt);
  r.sampling.ignore_eos = true;
  return r;
}
// Runs it alone; the harness compares its text with a cold one. Returns the tokens reused.
uint32_t run(EngineHarness& h, EngineRequest request) {
  uint64_t id = h.submit(std::move(request));
  h.run_until_idle();
  uint32_t n = h.entry(id).n_cached;
  h.check_all_ended();
  return n;
}
// The first n tokens of `prompt`, then others.
std::vector<int32_t> sharing(const std::vector<int32_t>& prompt, int n, int n_total) {
  std::vector<int32_t> other(prompt.begin(), prompt.begin() + n);
  while (static_cast<int>(other.size()) < n_total) {
    int32_t avoid = other.size() < prompt.size() ? prompt[other.size()] : 0;
    other.push_back(avoid % 50 + 2);
  }
  return other;
}

}  // namespace

TEST_CASE("idle pages count as free and the one idle for longest goes first") {
  PagePool pool({3});
  std::vector<PageId> evicted;
  pool.set_on_evict([&](int g, PageId p) { evicted.push_back(p), pool.forget(g, p); });
  PageId a = pool.allocate(0), b = pool.allocate(0), c = pool.allocate(0);
  pool.keep(0, a), pool.keep(0, b), pool.keep(0, c);
  pool.release(0, b), pool.release(0, a), pool.release(0, c);
  CHECK((pool.n_used() == 0 && pool.n_free() == 3 && pool.n_idle(0) == 3));
  pool.share(0, b);  // found again: held
  CHECK((pool.n_used() == 1 && pool.n_idle(0) == 2 && pool.n_shared() == 0));
  pool.release(0, b);
  CHECK((pool.allocate(0) == a && pool.allocate(0) == c && pool.allocate(0) == b));
  CHECK(evicted == std::vector<PageId>{a, c, b});
  CHECK(pool.allocate(0) == -1);
  pool.keep(0, a), pool.release(0, a), pool.forget(0, a);
  CHECK((pool.n_idle(0) == 0 && pool.n_free(0) == 1));
}

// Pages remember the tokens up to their end, as K/V do; whatever is found must have them. Narrow
// keys collide all the time, small pools evict all the time.
TEST_CASE(
    "a hit has the very tokens asked for, whatever the keys, and all pages its windows need") {
  for (int key_bits : {1, 3, 8, 64}) {
    for (std::vector<int> windows : {std::vector<int>{0}, {0, 10}, {10, 6}}) {
      INFO("key bits " << key_bits << ", groups " << windows.size() << ", first window "
                       << windows[0]);
      std::vector<int> n_pages(windows.size(), 24);
      PagePool pool(n_pages);
      PrefixCache cache(&pool, &windows, kPage, key_bits);
      std::mt19937 rng(static_cast<uint32_t>(key_bits));
      std::vector<std::map<PageId, std::vector<int32_t>>> content(windows.size());
      struct Live {
        std::vector<int32_t> tokens;
        std::unique_ptr<PageTable> table;
        PrefixCache::Chain chain;
        int n_computed = 0;
      };
      std::vector<Live> live;
      int64_t n_hits = 0, n_short = 0;
      for (int step = 0; step < 20'000; ++step) {
        if (live.size() < 3) {
          Live s;
          for (int i = 1 + static_cast<int>(rng() % 40); i > 0; --i)  // two tokens: much in common
            s.tokens.push_back(static_cast<int32_t>(rng() % 8 == 0));
          s.table = std::make_unique<PageTable>(&pool, &windows, kPage);
          size_t n_asked = s.tokens.size() - 1, n_prompt = rng() % (s.tokens.size() + 1);
          PrefixCache::Tokens tokens{std::span(s.tokens).first(n_prompt),
                                     std::span(s.tokens).subspan(n_prompt)};
          PrefixCache::Hit hit = cache.find(tokens, static_cast<int>(n_asked));
          int n = hit.chain.n_blocks;
          REQUIRE(n * kPage <= static_cast<int>(n_asked));
          for (size_t g = 0; g < windows.size(); ++g) {
            for (int i = 0; i < n; ++i) {
              bool is_visible = windows[g] == 0 || (i + 1) * kPage - 1 > n * kPage - windows[g];
              REQUIRE((hit.pages[g][i] >= 0) == is_visible);
              if (!is_visible) continue;
              std::vector<int32_t> expected(s.tokens.begin(), s.tokens.begin() + (i + 1) * kPage);
              REQUIRE(content[g].at(hit.pages[g][i]) == expected);
            }
          }
          n_hits += n > 0, n_short += n * kPage + kPage <= static_cast<int>(n_asked);
          if (n > 0) s.table->adopt(hit.pages);
          s.chain = hit.chain, s.n_computed = n * kPage;
          live.push_back(std::move(s));
        }
        size_t which = rng() % live.size();
        Live& s = live[which];
        int n = std::min<int>(s.n_computed + 1 + static_cast<int>(rng() % 9),
                              static_cast<int>(s.tokens.size()));
        if (s.n_computed == n || rng() % 12 == 0 || !s.table->grow(n)) {
          if (rng() % 50 == 0) cache.distrust(*s.table);
          live.erase(live.begin() + static_cast<int>(which));
          continue;
        }
        for (size_t g = 0; g < windows.size(); ++g) {
          for (int i = s.n_computed / kPage; i * kPage < n; ++i)
            content[g][s.table->pages(static_cast<int>(g))[i]] = {
                s.tokens.begin(), s.tokens.begin() + std::min(n, (i + 1) * kPage)};
        }
        s.n_computed = n;
        cache.publish({s.tokens, {}}, n, s.table.get(), &s.chain);
        s.table->leave_windows(n);
      }
      live.clear();
      CHECK((n_hits > 100 && n_short > 100));
      CHECK(pool.n_used() == 0);
      std::vector<PageId> taken;
      for (size_t g = 0; g < windows.size(); ++g) {
        for (int i = 0; i < 24; ++i) taken.push_back(pool.allocate(static_cast<int>(g)));
      }
      CHECK(std::count(taken.begin(), taken.end(), -1) == 0);
      CHECK(cache.n_entries() == 0);  // nothing is kept that has no page
    }
  }
}

TEST_CASE("the cache never changes the answer (C-27)") {
  const std::vector<int32_t> prompt = fake_prompt(37, 3);
  const int n = static_cast<int>(prompt.size());
  for (int n_shared :
       {0, 1, kPage - 1, kPage, kPage + 1, 5 * kPage - 1, 5 * kPage, n - 2, n - 1, n}) {
    for (int how : {0, 1, 2, 3}) {  // length, end token, cancel, stop string
      for (uint32_t max_tokens : {1u, 2u, 9u}) {
        INFO("shared " << n_shared << ", end " << how << ", max_tokens " << max_tokens);
        EngineHarness h({}, options());
        EngineRequest warm_up = endless(sharing(prompt, n_shared, n), how >= 2 ? 500 : max_tokens);
        if (how == 1) warm_up.sampling.ignore_eos = false, warm_up.max_tokens = 500;
        uint64_t id = h.submit(warm_up);
        if (how >= 2) {
          for (uint32_t i = 0; i < 3 + max_tokens; ++i) h.turn();
          if (how == 2)
            h.cancel(id);
          else
            h.silence(id, 0);
        }
        h.run_until_idle();
        h.check_all_ended();
        int64_t before = h.backend.n_tokens_run;
        uint32_t n_cached = run(h, endless(prompt, 20));
        CHECK(n_cached == static_cast<uint32_t>(std::min(n_shared, n - 1) / kPage * kPage));
        CHECK(h.backend.n_tokens_run - before ==
              n - n_cached + 19);  // what is counted is what was saved
      }
    }
  }
}

TEST_CASE(
    "a full hit computes the last token of the prompt again; a part of a page is never reused") {
  EngineHarness h({}, options());
  for (int n : {1, 3, 4, 5, 8, 31, 32, 33}) {
    run(h, endless(fake_prompt(n, 5), 3));
    CHECK(run(h, endless(fake_prompt(n, 5), 3)) == static_cast<uint32_t>((n - 1) / kPage * kPage));
  }
}

TEST_CASE(
    "the next turn of a conversation computes only what is new: generated pages are reused too") {
  EngineHarness h({}, options());
  std::vector<int32_t> text = fake_prompt(21, 7);
  uint32_t n_known = 0;
  for (int turn = 0; turn < 6; ++turn) {
    EngineRequest r = endless(text, 30);
    FakeText answer = fake_text(h.model, r, 0, h.limit, 1000);
    int64_t before = h.backend.n_tokens_run;
    CHECK(run(h, r) == n_known / kPage * kPage);
    CHECK(h.backend.n_tokens_run - before ==
          static_cast<int64_t>(text.size()) - n_known / kPage * kPage + 29);
    text.insert(text.end(), answer.tokens.begin(), answer.tokens.end());
    n_known = static_cast<uint32_t>(text.size()) - 1;  // the last token was drawn, not computed
    for (int i = 0; i < 10; ++i) text.push_back(i + turn + 1);
  }
}

TEST_CASE("strangers get their own text only, with any common prefix (C-26)") {
  for (int window_pages : {400, 60}) {
    EngineHarness h({}, options(120, window_pages));
    std::mt19937 rng(11);
    std::vector<std::vector<int32_t>> conversations(20);
    for (int i = 0; i < 20; ++i) {
      conversations[i] = {1, 2, 3, 4, 5, 6, 7, 8};
      for (int k = 0; k < 12; ++k) conversations[i].push_back(1 + (i * (k + 1) * 7 + k) % 57);
    }
    int64_t n_prompts = 0;
    for (int round = 0; round < 8; ++round) {
      std::shuffle(conversations.begin(), conversations.end(), rng);
      for (std::vector<int32_t>& text : conversations) {
        EngineRequest r = endless(text, 6);
        for (int32_t token : fake_text(h.model, r, 0, h.limit, 1000).tokens) text.push_back(token);
        h.submit(r), n_prompts += static_cast<int64_t>(r.prompt.size());
        text.push_back(9);
        if (rng() % 3 == 0) h.submit(endless({1, 50, 49, 48, 47, 46}, 4)), n_prompts += 6;
        h.turn(), h.turn();
      }
    }
    h.run_until_idle();
    h.check_all_ended();  // each as alone
    CHECK(h.entries.empty());
    CHECK(h.n_cached_tokens > 0);
    if (h.engine->counters().preemptions == 0)
      CHECK(static_cast<int64_t>(h.engine->counters().prompt_tokens) ==
            n_prompts - h.n_cached_tokens);
  }
}

TEST_CASE("requests that run at once share the pages of their prefix, and so more of them fit") {
  for (bool has_cache : {true, false}) {
    EngineOptions o = options(100);  // 400 tokens
    o.has_prefix_cache = has_cache;
    EngineHarness h({}, o);
    std::vector<int32_t> system = fake_prompt(200, 2);
    run(h, endless(system, 1));
    for (int32_t i = 0; i < 6; ++i) {
      std::vector<int32_t> prompt = system;
      for (int32_t k = 0; k < 8; ++k) prompt.push_back(i + k + 1);
      h.submit(endless(prompt, 8));
    }
    h.turn(), h.turn(), h.turn(), h.turn();
    CHECK(h.engine->counters().n_running == (has_cache ? 6u : 1u));
    h.run_until_idle();
    h.check_all_ended();
    CHECK(h.n_cached_tokens == (has_cache ? 6 * 200 : 0));
  }
}

TEST_CASE("cached pages are evicted for whoever needs room, the least recently used first") {
  EngineHarness h({}, options(40));  // 160 tokens
  run(h, endless(fake_prompt(60, 1), 1));
  run(h, endless(fake_prompt(60, 2), 1));
  CHECK(run(h, endless(fake_prompt(60, 1), 1)) == 56);
  run(h, endless(fake_prompt(60, 3), 1));  // 45 pages: the tail of 2 goes
  CHECK(run(h, endless(fake_prompt(60, 1), 1)) == 56);
  uint32_t n_left = run(h, endless(fake_prompt(60, 2), 1));
  CHECK((n_left > 0 && n_left < 56));
  CHECK(run(h, endless(fake_prompt(159, 4), 1)) == 0);  // everything at once
  CHECK(run(h, endless(fake_prompt(60, 1), 1)) == 0);
}

TEST_CASE(
    "of two that computed the same at once, the second is found when the pages of the first are "
    "gone") {
  EngineOptions o = options(40);
  o.prefill_chunk_tokens = 256;
  EngineHarness h({}, o);
  h.submit(endless(fake_prompt(60, 1), 1));
  h.submit(endless(fake_prompt(60, 1), 17));
  h.turn();
  CHECK(h.engine->counters().pages_used ==
        15 + 6);                             // its prompt once, not twice; the window's part of it
  h.submit(endless(fake_prompt(80, 2), 1));  // pushes out what the first left behind
  h.run_until_idle();
  CHECK(h.n_cached_tokens == 0);
  CHECK(h.engine->counters().preemptions == 0);
  h.check_all_ended();
  CHECK(run(h, endless(fake_prompt(60, 1), 1)) == 56);
}

TEST_CASE("pinned prefixes outlast whatever fills the pool, and sequences grow to what is left") {
  for (const int window : {8, 24}) {
    INFO("window " << window);
    EngineHarness h({.window = window}, options(60, 60));  // 240 tokens
    const std::vector<int32_t> first = fake_prompt(60, 1), second = sharing(first, 32, 50);
    CHECK(h.engine->pin(first) == 0);  // nothing of it is cached
    run(h, endless(first, 1));
    CHECK(h.engine->pin(first) == 60);
    h.turn();  // publishes the accounts
    h.n_pinned_pages = h.engine->counters().pages_used;
    CHECK(h.n_pinned_pages == 15 + window / 4);  // full attention, and what the window reaches
    run(h, endless(second, 1));
    CHECK(h.engine->pin(second) == 48);
    // Full attention: 15 pages, and 4 more of the second, which shares 8 (only what the window reaches, in a windowed group).
    h.limit = h.engine->max_tokens_per_sequence();
    CHECK(h.limit == 240 - 4 * (15 + 4));
    h.turn();
    h.n_pinned_pages = h.engine->counters().pages_used;
    h.n_pinned_twice = h.engine->counters().pages_shared;
    CHECK(h.n_pinned_pages >= 15 + 4 + window / 4);
    CHECK(h.n_pinned_twice >= 8);
    for (int32_t i = 0; i < 12; ++i) h.submit(endless(fake_prompt(100, static_cast<uint64_t>(i) + 10), 70));
    const uint64_t longest = h.submit(endless(fake_prompt(100, 99), 500));
    h.run_until_idle();
    CHECK(h.entry(longest).choices[0].end == SequenceEnd::kPool);
    CHECK(h.entry(longest).choices[0].tokens.size() == static_cast<size_t>(h.limit) - 100);
    h.check_all_ended();
    CHECK(run(h, endless(sharing(first, 60, 90), 5)) == 60);
    CHECK(run(h, endless(sharing(second, 48, 90), 5)) == 48);
    CHECK(h.engine->counters().pages_used == h.n_pinned_pages);
  }
}

TEST_CASE("pages that a window lost shorten or forbid the hit") {
  EngineHarness h({.window = 8}, options(400, 12));
  std::vector<int32_t> prompt = fake_prompt(60, 1);
  run(h, endless(prompt, 1));
  CHECK(run(h, endless(prompt, 1)) == 56);
  run(h, endless(fake_prompt(90, 2), 1));  // uses all of the windowed group, little of the other
  CHECK(run(h, endless(prompt, 1)) == 0);
  CHECK(run(h, endless(prompt, 1)) == 56);  // its entries got pages again
  EngineHarness wide({.window = 8}, options(400, 400));
  run(wide, endless(prompt, 1));
  for (int n : {9, 20, 33, 50})
    CHECK(run(wide, endless(sharing(prompt, n, 60), 1)) ==
          static_cast<uint32_t>(n / kPage * kPage));
}

TEST_CASE("choices, resumed requests and scored prompts with a cache") {
  EngineHarness h({}, options());
  EngineRequest r = endless(fake_prompt(42, 5), 30, 4);
  CHECK(run(h, r) == 0);
  CHECK(run(h, r) == 40);
  for (EngineRequest::Choice& c : r.choices) {
    FakeText text = fake_text(h.model, r, c.choice, h.limit, 1000);
    c.generated.assign(text.tokens.begin(), text.tokens.begin() + c.choice * 7);
  }
  CHECK(run(h, r) == 40);
  r.choices.erase(r.choices.begin());
  CHECK(run(h, r) == 40);
  EngineRequest scored = endless(fake_prompt(42, 5), 0);
  scored.prompt_logprobs = true, scored.n_top_logprobs = 0;
  CHECK(run(h, scored) == 0);  // and the harness has checked each position
  CHECK(run(h, endless(fake_prompt(42, 5), 0)) == 40);
}

TEST_CASE("pages found again after a preemption are reused but not counted") {
  EngineOptions o = options();
  o.max_batch_size = 1;
  EngineHarness h({}, o);
  uint64_t low = h.submit(endless(fake_prompt(42, 5), 60));
  for (int i = 0; i < 30; ++i) h.turn();
  EngineRequest urgent = endless(fake_prompt(9, 6), 5);
  urgent.priority = 0;
  h.submit(urgent);
  h.run_until_idle();
  CHECK(h.engine->counters().preemptions == 1);
  CHECK(h.entry(low).n_cached == 0);
  CHECK(h.engine->counters().prompt_tokens == 51);
  CHECK(h.backend.n_tokens_run <
        42 + 59 + 9 + 4 + 2 * kPage);  // only a part of a page computed twice
  h.check_all_ended();
}

TEST_CASE("what one place computed is no prefix for another") {
  EngineHarness h({}, options());
  const std::vector<int32_t> prompt = fake_request(40, 1, 1, 1).prompt;
  auto at = [&](uint8_t place) {
    EngineRequest r = endless(prompt, 2);
    r.place = place;
    return run(h, std::move(r));
  };
  CHECK(at(0) == 0);
  CHECK(at(1) == 0);
  CHECK(at(0) == 36);  // all full pages before the last token
  CHECK(at(1) == 36);
}

TEST_CASE("numbers that are not finite are not kept for others") {
  EngineHarness h({}, options());
  EngineRequest bad = endless(fake_prompt(30, 2), 20);
  bad.prompt[14] = kFakeNanToken;
  h.submit(bad);
  h.run_until_idle();
  h.entries.clear(), h.ended.clear();
  int64_t before = h.backend.n_tokens_run;
  uint64_t id = h.submit(bad);
  h.run_until_idle();
  CHECK(h.entry(id).choices.at(0).end == SequenceEnd::kFailed);
  CHECK(h.backend.n_tokens_run - before == 30);
}

}  // namespace tandem
