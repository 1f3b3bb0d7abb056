// Steps before anybody waits for them: how many sequences they reach, what stops them, and that they leave nothing.
#include "worker/rehearsal.h"

#include <catch2/catch.hpp>

#include "base/clock.h"
#include "tests/engine/fake_backend.h"

namespace tandem {
namespace {

struct Box {
  FakeModel model;
  FakeBackend backend{model};
  EngineEvents all;
  std::unique_ptr<Engine> engine;
  explicit Box(int n_pages, int max_batch_size = 8) {
    EngineOptions o;
    o.page_size = model.page_size;
    o.n_pages = {n_pages, n_pages};
    o.max_batch_size = max_batch_size;
    o.context_tokens = 400;
    REQUIRE(backend.reserve_pages(o.n_pages).ok());
    engine = std::make_unique<Engine>(&backend, o, &clock, [this](EngineEvents e) {
      std::move(e.tokens.begin(), e.tokens.end(), std::back_inserter(all.tokens));
    });
  }
  Result<int> run(int most, int n_sets, int64_t most_us = 60'000'000, int64_t canary_us = 0) {
    return rehearse(engine.get(), {most, n_sets, kFakeVocab, most_us, canary_us}, [this] { return std::exchange(all, {}); });
  }
  FakeClock clock;
};

}  // namespace

TEST_CASE("rehearsal: every size up to the largest step, with each set, and nothing is left") {
  Box box(2000);
  CHECK(*box.run(6, 2) == 6);
  CHECK(box.backend.max_items_seen == 6);
  CHECK(box.backend.n_steps_of[0] > 9);
  CHECK(box.backend.n_steps_of[1] >= 9);
  CHECK(box.backend.fault == "");
  CHECK_FALSE(box.engine->turn());
  CHECK(box.engine->counters().n_running == 0);
  Box full_only(2000);
  CHECK(*full_only.run(4, 1) == 4);
  CHECK(full_only.backend.n_steps_of[1] == 0);
}

TEST_CASE("rehearsal: ends early where pages or time are short, and says how far it came") {
  Box small(20);
  const auto reached = small.run(8, 1);
  REQUIRE(reached.ok());
  CHECK((*reached >= 1 && *reached < 8));
  CHECK_FALSE(small.engine->turn());
  Box slow(2000);
  CHECK(*slow.run(8, 1, 1'000'000, 2'000'000) == 0);
  CHECK(slow.backend.n_tokens_run == 0);
}

TEST_CASE("rehearsal: with a backend that failed it ends at nothing; the engine has told it to whom it concerns") {
  Box box(2000);
  box.backend.next_forward = data_loss("gone");
  CHECK(*box.run(4, 1) == 0);
}

}  // namespace tandem
