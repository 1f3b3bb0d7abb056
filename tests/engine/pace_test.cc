// How long a step takes, who waits for it, and batching that is not continuous.
#include <catch2/catch.hpp>
#include <random>

#include "engine/step_cost.h"
#include "engine_harness.h"

namespace tandem {
namespace {

// A machine: the time of a step of this shape, in microseconds.
double true_us(const StepShape& s) {
  int n = s.n_decode + s.n_prefill;
  return 3000 + 900 * std::min(n, 16) + 700 * std::max(n - 16, 0) +
         0.4 * static_cast<double>(s.decode_reads) + 0.1 * static_cast<double>(s.prefill_reads);
}

// Scheduler alone under a clock that steps take time on.
struct PacedRun {
  explicit PacedRun(SchedulerOptions o) : scheduler(std::move(o)) {}
  void add(int n_prompt, uint32_t max_tokens, bool waits_for_company = true, int priority = 1) {
    EngineRequest r = fake_request(n_prompt, max_tokens, ++id, 1, priority);
    r.id = id;
    r.waits_for_company = waits_for_company;
    r.sampling.ignore_eos = true;
    scheduler.add(std::move(r), now, &events);
  }
  bool step() {
    const StepPlan& plan = scheduler.schedule(now);
    if (plan.items.empty()) return false;
    last_shape = plan.shape;
    n_items = static_cast<int>(plan.batch.items.size());
    std::vector<SampleResult> results(plan.samples.size());
    for (SampleResult& r : results) r.token = 1;
    step_us = static_cast<int64_t>(true_us(plan.shape) * noise());
    now += step_us;
    events = {};
    scheduler.commit(results, now, &events, &copies);
    return true;
  }
  Scheduler scheduler;
  std::function<double()> noise = [] { return 1.0; };
  int64_t now = 1, step_us = 0;
  uint64_t id = 0;
  int n_items = 0;
  StepShape last_shape;
  EngineEvents events;
  std::vector<PageCopy> copies;
};

SchedulerOptions options(int64_t target_gap_us) {
  SchedulerOptions o;
  o.max_batch_size = 16;
  o.target_gap_us = target_gap_us;
  o.context_tokens = 8192;
  o.windows = {0};
  o.n_pages = {4000};
  return o;
}

}  // namespace

TEST_CASE("the cost of a step is learned from noisy steps") {
  std::mt19937 rng(3);
  StepCost cost;
  std::normal_distribution<double> noise(1.0, 0.05);
  for (int i = 0; i < 4000; ++i) {
    StepShape s;
    s.n_decode = static_cast<int>(rng() % 17);
    s.n_prefill = rng() % 3 == 0 ? static_cast<int>(rng() % 256) : 0;
    if (s.n_decode + s.n_prefill == 0) continue;
    s.decode_reads = s.n_decode * static_cast<int64_t>(rng() % 2000);
    s.prefill_reads = s.n_prefill * static_cast<int64_t>(rng() % 4000);
    double hiccup = rng() % 50 == 0 ? 10 : 1;
    cost.observe(s, true_us(s) * noise(rng) * hiccup);
  }
  for (StepShape s : {StepShape{8, 0, 4000, 0}, StepShape{8, 24, 4000, 24 * 3000}, StepShape{0, 256, 0, 256 * 500},
                      StepShape{16, 0, 16 * 500, 0}, StepShape{1, 0, 100, 0}, StepShape{4, 100, 400, 100 * 2000}}) {
    INFO(s.n_decode << " + " << s.n_prefill);
    CHECK(cost.predict_us(s) / true_us(s) == Approx(1).margin(0.25));
  }
}

TEST_CASE("a machine that becomes slower is noticed") {
  StepCost cost;
  StepShape s{8, 0, 4000, 0};
  for (int i = 0; i < 100; ++i) cost.observe(s, 10'000);
  CHECK(cost.predict_us(s) == Approx(10'000).epsilon(0.02));
  cost.observe(s, 500'000);
  CHECK(cost.predict_us(s) < 10'500);
  for (int i = 0; i < 100; ++i) cost.observe(s, 30'000);
  CHECK(cost.predict_us(s) == Approx(30'000).epsilon(0.05));
}

TEST_CASE("a long prompt beside eight streams: gaps below the target, the prompt not starved") {
  std::mt19937 rng(5);
  for (double sigma : {0.0, 0.1}) {
    int64_t alone_us = 0;
    {
      PacedRun alone(options(30'000));
      alone.add(6000, 1);
      while (alone.step()) {}
      alone_us = alone.now;
    }
    PacedRun run(options(30'000));
    std::normal_distribution<double> noise(1.0, sigma);
    run.noise = [&] { return sigma == 0 ? 1.0 : std::clamp(noise(rng), 0.7, 1.5); };
    for (int i = 0; i < 8; ++i) run.add(40, 3000);
    for (int i = 0; i < 100; ++i) run.step();
    int64_t normal_us = 0;
    for (int i = 0; i < 100; ++i) run.step(), normal_us = std::max(normal_us, run.step_us);
    run.add(6000, 1);
    int64_t start = run.now, worst_us = 0;
    int n_steps = 0, n_late = 0;
    do {
      run.step();
      worst_us = std::max(worst_us, run.step_us);
      ++n_steps, n_late += run.step_us > 30'000;
    } while (run.last_shape.n_prefill > 0);
    CHECK(n_late <= n_steps / 10);  // one in twenty, once the noise is known
    CHECK(static_cast<double>(worst_us) < 30'000 * (1 + 4 * sigma));
    CHECK(static_cast<double>(worst_us) > 1.5 * static_cast<double>(normal_us));  // the time is used
    CHECK(run.now - start < alone_us * 3);
  }
}

TEST_CASE("a target below what the decodes alone take still lets prompts go on") {
  PacedRun run(options(1000));
  for (int i = 0; i < 4; ++i) run.add(40, 2000);
  for (int i = 0; i < 50; ++i) run.step();
  run.add(2000, 1);
  int n_steps = 0;
  do run.step(), ++n_steps; while (run.last_shape.n_prefill > 0);
  CHECK(n_steps <= 2000 / 8 + 1);
}

TEST_CASE("a prompt slows streams of its own class more than those above it, and those below it most") {
  auto worst_stretch = [](int stream_priority, int prompt_priority) {
    PacedRun run(options(1000));
    for (int i = 0; i < 8; ++i) run.add(40, 3000, true, stream_priority);
    int64_t alone_us = 0, worst_us = 0;
    for (int i = 0; i < 100; ++i) run.step(), alone_us = run.step_us;
    run.add(300, 1, true, prompt_priority);
    do run.step(), worst_us = std::max(worst_us, run.step_us); while (run.last_shape.n_prefill > 0);
    return static_cast<double>(worst_us) / static_cast<double>(alone_us);
  };
  for (const auto& [stream, prompt] : {std::pair(0, 1), {0, 2}, {1, 2}}) CHECK(worst_stretch(stream, prompt) < 1.75);  // the least chunk may be longer
  for (const auto& [stream, prompt] : {std::pair(1, 1), {0, 0}}) CHECK((worst_stretch(stream, prompt) > 2 && worst_stretch(stream, prompt) < 2.75));
  for (const auto& [stream, prompt] : {std::pair(2, 1), {1, 0}, {2, 0}}) CHECK((worst_stretch(stream, prompt) > 3 && worst_stretch(stream, prompt) < 4.4));
}

TEST_CASE("the first step of a set of weights takes no whole chunk beside streams") {
  PacedRun run(options(30'000));
  for (int i = 0; i < 8; ++i) run.add(40, 3000);
  for (int i = 0; i < 100; ++i) run.step();
  run.add(2000, 1);
  run.scheduler.set_weights(WeightSet::kLean);
  run.step();
  CHECK(run.last_shape.n_prefill > 0);
  CHECK(run.step_us < 35'000);
}

TEST_CASE("without a target, or alone, chunks are whole") {
  PacedRun run(options(0));
  run.add(40, 100);
  for (int i = 0; i < 20; ++i) run.step();
  run.add(2000, 1);
  run.step();
  CHECK(run.last_shape.n_prefill == 256);
  PacedRun alone(options(10'000));
  alone.add(2000, 1);
  alone.step();
  CHECK(alone.last_shape.n_prefill == 256);
}

TEST_CASE("dynamic batching: whoever waits when the last batch has ended") {
  SchedulerOptions o = options(0);
  o.batching = Batching::kDynamic;
  PacedRun run(o);
  run.add(10, 30);
  run.step();
  run.add(10, 3), run.add(10, 4);
  for (int i = 0; i < 29; ++i) {
    CHECK(run.n_items == 1);
    run.step();
  }
  CHECK(run.scheduler.n_running() == 0);
  run.step();
  CHECK(run.n_items == 2);
  for (int i = 0; i < 3; ++i) run.step();
  CHECK(run.n_items == 1);  // the ended lane is dropped
  CHECK_FALSE(run.step());
}

TEST_CASE("static batching: a request that waits for no company begins at once, with those that wait") {
  SchedulerOptions o = options(0);
  o.max_batch_size = 4;
  o.batching = Batching::kStatic;
  PacedRun run(o);
  run.add(10, 5);
  CHECK_FALSE(run.step());
  run.add(10, 5, false);
  CHECK(run.step());
  CHECK(run.scheduler.n_running() == 2);
}

TEST_CASE("static batching: a batch forms when full or after a wait; ended lanes are dropped or computed on") {
  for (bool is_padded : {false, true}) {
    SchedulerOptions o = options(0);
    o.max_batch_size = 4;
    o.batching = is_padded ? Batching::kStaticPadded : Batching::kStatic;
    PacedRun run(o);
    run.add(10, 30);
    CHECK_FALSE(run.step());
    run.now += o.form_us - 1;
    CHECK_FALSE(run.step());
    run.now += 1;
    CHECK(run.step());
    for (int i = 0; i < 29; ++i) run.step();
    REQUIRE(run.scheduler.is_idle());
    for (uint32_t n : {3u, 5u, 5u, 20u, 7u}) run.add(10, n);
    for (int i = 0; i < 10; ++i) REQUIRE(run.step());
    CHECK(run.n_items == (is_padded ? 4 : 1));
    CHECK(run.scheduler.n_running() == 1);
    // 19 positions are two pages; those that ended after 13 and 15 go on to as many.
    CHECK(run.scheduler.pool().n_used() == 2 * run.n_items);
    for (int i = 0; i < 10; ++i) REQUIRE(run.step());
    CHECK(run.step());  // the fifth has waited long enough
    CHECK(run.n_items == 1);
    for (int i = 0; i < 6; ++i) run.step();
    CHECK(run.scheduler.is_idle());
    run.step();
    CHECK(run.scheduler.pool().n_used() == 0);
  }
}

}  // namespace tandem
