// A short run of the simulator: what must hold holds at some load of each kind, and each planted
// fault is reported. Long runs: the program `simulate`.
#include "simulation.h"

#include <catch2/catch.hpp>

namespace tandem {
namespace {

using End = SimOutcome::End;

SimOptions options(int lanes = 16, int n_pages = 4000) {
  SimOptions o;
  o.scheduler.max_batch_size = lanes;
  o.scheduler.context_tokens = 1 << 20;
  o.scheduler.windows = {0};
  o.scheduler.n_pages = {n_pages};
  o.scheduler.target_gap_us = 50'000;
  o.latency = example_latency();
  return o;
}
SyntheticTrace short_ones(int64_t n, double per_second) {
  SyntheticTrace t;
  t.n_requests = n;
  t.per_second = per_second;
  t.long_share = 0;
  return t;
}
int64_t count(const SimReport& r, End end) {
  auto it = r.n_ends.find(end);
  return it == r.n_ends.end() ? 0 : it->second;
}
void check_sound(const SimReport& r) {
  for (const std::string& what : r.faults) FAIL_CHECK(what);
}
double ttft_p50(const std::vector<SimRequest>& trace, const SimReport& r, int priority) {
  return quantile(r, 0.5, [&](size_t i, const SimOutcome& o) {
    return trace[i].priority == priority ? static_cast<double>(o.first_token_us) : -1.0;
  });
}

}  // namespace

TEST_CASE("a hundred thousand requests: everybody ends once, no page is lost") {
  SyntheticTrace t = short_ones(100'000, 14);
  t.short_prompt = 32;
  t.short_output = 4, t.long_output = 60, t.long_share = 0.05, t.long_prompt = 300;
  t.high_share = 0.2, t.low_share = 0.3, t.n_keys = 5, t.n_shared = 20;
  t.cancel_share = 0.02, t.timeout_share = 0.02;
  SimReport r = simulate(make_trace(t), options());
  check_sound(r);
  CHECK(count(r, End::kDone) > 80'000);
  CHECK(count(r, End::kCancelled) > 100);
  CHECK(count(r, End::kDeadline) > 100);
}

TEST_CASE("pages run out, with and without a swap tier, in every way of batching") {
  SyntheticTrace t = short_ones(3'000, 20);
  t.short_output = 20, t.long_output = 300, t.long_share = 0.1, t.n_keys = 3, t.n_shared = 20;
  t.high_share = 0.2, t.low_share = 0.2, t.cancel_share = 0.05;
  std::vector<SimRequest> trace = make_trace(t);
  for (size_t i = 0; i < trace.size(); i += 7) trace[i].n_choices = 3;
  for (Batching batching : {Batching::kContinuous, Batching::kDynamic, Batching::kStatic, Batching::kStaticPadded}) {
    for (int swap_pages : {0, 30, 400}) {
      SimOptions o = options(12, 60);
      o.scheduler.batching = batching;
      o.scheduler.n_swap_pages = {swap_pages};
      o.scheduler.adapts_batch_limit = swap_pages == 30;
      SimReport r = simulate(trace, o);
      INFO(static_cast<int>(batching) << " swap " << swap_pages);
      check_sound(r);
      if (swap_pages == 0) CHECK(r.swaps == 0);
      if (batching == Batching::kContinuous) CHECK((r.swaps > 0) == (swap_pages > 0));
      if (batching == Batching::kContinuous) CHECK(r.preemptions + r.swaps > 0);
    }
  }
}

TEST_CASE("ten thousand wait, and all are served") {
  SyntheticTrace t = short_ones(10'000, 0);
  t.n_keys = 50, t.high_share = 0.1, t.low_share = 0.4;
  SimOptions o = options();
  o.limits.max_queue = 10'000;
  std::vector<SimRequest> trace = make_trace(t);
  SimReport r = simulate(trace, o);
  check_sound(r);
  CHECK(count(r, End::kDone) == 10'000);
  CHECK(ttft_p50(trace, r, 0) * 3 < ttft_p50(trace, r, 2));
}

TEST_CASE("at saturation high priority waits a third of low's time at most, and low still finishes") {
  SyntheticTrace t = short_ones(6'000, 20);  // twice what the box serves
  t.short_output = 20, t.high_share = 0.2, t.low_share = 0.4;
  std::vector<SimRequest> trace = make_trace(t);
  SimReport r = simulate(trace, options());
  check_sound(r);
  CHECK(count(r, End::kRefused) + count(r, End::kDisplaced) > 500);
  double high = ttft_p50(trace, r, 0), low = ttft_p50(trace, r, 2);
  CHECK(high > 0);
  CHECK(high * 3 <= low);
  int64_t n_low = 0, n_done = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    bool is_accepted = r.outcomes[i].end != End::kRefused && r.outcomes[i].end != End::kDisplaced;
    if (trace[i].priority == 2 && is_accepted) ++n_low, n_done += r.outcomes[i].end == End::kDone;
  }
  CHECK(n_low > 50);
  CHECK(n_done == n_low);
}

TEST_CASE("a high request gets out of a full batch what it needs at once (C-32)") {
  std::vector<SimRequest> trace;
  for (int i = 0; i < 18; ++i) trace.push_back({.arrival_us = 0, .n_prompt = 40, .n_output = 2000, .priority = 2});
  trace.push_back({.arrival_us = 5'000'000, .n_prompt = 40, .n_output = 20, .priority = 0});
  for (int swap_pages : {0, 4000}) {
    SimOptions o = options();
    o.scheduler.n_swap_pages = {swap_pages};
    SimReport r = simulate(trace, o);
    check_sound(r);
    CHECK(r.recalls == 1);
    CHECK(r.outcomes[18].first_token_us < 300'000);
    CHECK(count(r, End::kDone) == 19);
  }
}

TEST_CASE("refused requests that come back when told to are served") {
  SyntheticTrace t = short_ones(3'000, 20);
  t.short_output = 20;
  SimOptions o = options();
  o.limits.max_queue = 64;
  std::vector<SimRequest> trace = make_trace(t);
  SimReport first = simulate(trace, o);
  check_sound(first);
  // The last one refused, alone with those accepted before it: it comes back as late as it was told.
  size_t refused = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (first.outcomes[i].end == End::kRefused) refused = i;
  }
  REQUIRE(refused > 1000);
  int told_s = first.outcomes[refused].retry_after_s;
  trace.resize(refused + 1);
  trace[refused].arrival_us += int64_t{told_s} * 1'000'000;
  SimReport again = simulate(trace, o);
  CHECK(again.outcomes[refused].end == End::kDone);
  CHECK(again.outcomes[refused].first_token_us < 1'000'000);  // nobody is before it any more
  // Not three times too late: with a third of the wait, it would still have had to wait.
  trace[refused].arrival_us -= int64_t{told_s} * 1'000'000 * 2 / 3;
  SimReport early = simulate(trace, o);
  CHECK((early.outcomes[refused].end == End::kRefused || early.outcomes[refused].first_token_us > 500'000));
}

TEST_CASE("keys share: one that sends everything does not keep the other from being served") {
  std::vector<SimRequest> trace;
  for (int i = 0; i < 200; ++i) trace.push_back({.arrival_us = 0, .n_prompt = 64, .n_output = 50, .key = 1});
  for (int i = 0; i < 20; ++i) trace.push_back({.arrival_us = 1'000'000, .n_prompt = 64, .n_output = 50, .key = 2});
  SimReport r = simulate(trace, options(4));
  check_sound(r);
  int64_t last_of_2 = 0, last_of_1 = 0;
  for (size_t i = 0; i < trace.size(); ++i)
    (trace[i].key == 2 ? last_of_2 : last_of_1) =
        std::max(trace[i].key == 2 ? last_of_2 : last_of_1, r.outcomes[i].end_us + trace[i].arrival_us);
  CHECK(last_of_2 * 3 < last_of_1);
}

TEST_CASE("continuous batching beats dynamic, and both beat computing ended lanes") {
  SyntheticTrace t = short_ones(800, 0);
  t.short_output = 8, t.long_output = 1024, t.long_share = 0.05;
  std::vector<SimRequest> trace = make_trace(t);
  std::map<Batching, double> rate;
  for (Batching batching : {Batching::kContinuous, Batching::kDynamic, Batching::kStatic, Batching::kStaticPadded}) {
    SimOptions o = options();
    o.limits.max_queue = 1000;
    o.scheduler.batching = batching;
    SimReport r = simulate(trace, o);
    check_sound(r);
    rate[batching] = r.tokens_per_s();
  }
  CHECK(rate[Batching::kContinuous] > 6 * rate[Batching::kStaticPadded]);
  CHECK(rate[Batching::kDynamic] > 2.5 * rate[Batching::kStaticPadded]);
  CHECK(rate[Batching::kContinuous] > 1.2 * rate[Batching::kDynamic]);
  CHECK(rate[Batching::kStatic] == Approx(rate[Batching::kDynamic]).epsilon(0.1));
}

TEST_CASE("an adapting batch limit takes away the jump of the latency when pages run short") {
  SyntheticTrace t = short_ones(1'500, 6);
  t.short_prompt = 200, t.short_output = 100, t.long_share = 0;
  std::vector<SimRequest> trace = make_trace(t);
  uint64_t n_preempted[2];
  for (bool adapts : {false, true}) {
    SimOptions o = options(32, 140);
    o.limits.max_queue = 2000;
    o.scheduler.adapts_batch_limit = adapts;
    o.scheduler.has_prefix_cache = false;
    SimReport r = simulate(trace, o);
    check_sound(r);
    n_preempted[adapts] = r.preemptions;
  }
  CHECK(n_preempted[true] * 2 < n_preempted[false]);
}

TEST_CASE("the latency model is fitted to what bench measured") {
  const char* json = R"({"results":[
    {"batch":1,"prompt":512,"gen":128,"prefill_tokens_per_s":1290,"decode_tokens_per_s":250},
    {"batch":8,"prompt":512,"gen":128,"prefill_tokens_per_s":1300,"decode_tokens_per_s":470},
    {"batch":16,"prompt":512,"gen":128,"prefill_tokens_per_s":1280,"decode_tokens_per_s":580},
    {"batch":1,"prompt":4096,"gen":128,"prefill_tokens_per_s":1000,"decode_tokens_per_s":180}]})";
  auto rows = read_bench(json, 256);
  REQUIRE(rows.ok());
  StepCost cost(StepCost::fit(*rows));
  for (const StepCost::Row& row : *rows) CHECK(cost.predict_us(row.shape) == Approx(row.us).epsilon(0.2));
  auto again = parse_weights(print_weights(cost));
  REQUIRE(again.ok());
  CHECK(again->cost.predict_us({8, 0, 4000, 0}) == Approx(cost.predict_us({8, 0, 4000, 0})).epsilon(0.01));
  CHECK(!read_bench("{}", 256).ok());
  CHECK(!read_bench(R"({"results":[{"batch":1}]})", 256).ok());
  CHECK(!parse_weights("1,2,3").ok());
  CHECK(!parse_weights("1,2,3,4,-5").ok());
}

TEST_CASE("planted faults are reported") {
  SyntheticTrace t = short_ones(300, 30);
  t.short_output = 12;
  std::vector<SimRequest> trace = make_trace(t);
  const std::pair<Plant, const char*> plants[] = {{Plant::kLeak, "leaked"},
                                                  {Plant::kStarvation, "starves"},
                                                  {Plant::kDoubleEnd, "ended twice"},
                                                  {Plant::kTwoOwners, "two owners"},
                                                  {Plant::kQueueBound, "more than its bound"}};
  for (const auto& [plant, words] : plants) {
    SimOptions o = options();
    o.plant = plant;
    if (plant == Plant::kQueueBound) o.limits.max_queue = 4;
    SimReport r = simulate(trace, o);
    INFO(words);
    REQUIRE(!r.faults.empty());
    CHECK(std::any_of(r.faults.begin(), r.faults.end(),
                      [&, w = words](const std::string& f) { return f.find(w) != std::string::npos; }));
  }
  SimOptions o = options();
  o.limits.max_queue = 4;
  check_sound(simulate(trace, o));  // the same without a plant
}

}  // namespace tandem
