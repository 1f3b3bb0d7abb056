// Load by cause, the ladder as data, and the policy: by example and by property over random load curves.
#include <catch2/catch.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "admission/degrade_policy.h"

using namespace tandem;

namespace {

constexpr int64_t kS = 1'000'000;

std::string shipped() {
  std::ifstream in(TANDEM_SOURCE_DIR "/firmware_config/degrade_ladder.toml");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}
Ladder ladder_of(const std::string& text) {
  auto ladder = parse_ladder(text, "l.toml");
  if (!ladder.ok()) FAIL(ladder.status().message());
  return *ladder;
}
std::string error_of(const std::string& text) {
  auto ladder = parse_ladder(text, "l.toml");
  return ladder.ok() ? "" : ladder.status().message();
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A sample in which one cause measures so that its load is `value` on the default scales, and the rest is idle.
LoadSample sample_of(LoadCause cause, double value) {
  LoadScales s;
  LoadSample out;
  out.queue_wait_s = 0, out.token_gap_s = 0, out.kv_ratio = 0, out.memory_pressure = 0, out.heat_room_c = 60;
  auto at = [value](const CauseScale& scale) { return scale.zero + value * (scale.one - scale.zero); };
  switch (cause) {
    case LoadCause::kQueue: out.queue_wait_s = at(s.queue); break;
    case LoadCause::kCompute: out.token_gap_s = at(s.compute); break;
    case LoadCause::kKv: out.kv_ratio = at(s.kv); break;
    case LoadCause::kMemory: out.memory_pressure = at(s.memory_pressure); break;
    case LoadCause::kHeat: out.heat_room_c = at(s.heat_room); break;
  }
  return out;
}

struct Run {
  Load load{LoadScales{}};
  DegradePolicy policy;
  int64_t now = 1000 * kS;
  std::vector<DegradePolicy::Change> changes;
  explicit Run(const std::string& text) : policy(ladder_of(text)) {}
  void step(const LoadSample& sample, bool is_full = false) {
    now += kS;
    load.sample(sample, now);
    changes = policy.turn(load, is_full, now);
  }
  void steps(int n, const LoadSample& sample) {
    for (int i = 0; i < n; ++i) step(sample);
  }
};

const char* kTwo = R"(
[[rung]]
name = "logprobs"
causes = ["queue"]
enter = 0.7
leave = 0.5
dwell_s = 10
[[rung]]
name = "shed"
causes = ["queue", "heat"]
enter = 0.95
leave = 0.75
dwell_s = 10
then_normal_s = 12
)";

}  // namespace

TEST_CASE("load: each cause on its own scale, smoothed, highest for show") {
  Load load{LoadScales{}};
  int64_t now = kS;
  for (int c = 0; c < kNumLoadCauses; ++c) CHECK(!load.value(static_cast<LoadCause>(c)));
  CHECK(!load.highest());
  for (int c = 0; c < kNumLoadCauses; ++c) {
    auto cause = static_cast<LoadCause>(c);
    Load fresh{LoadScales{}};
    fresh.sample(sample_of(cause, 0.6), now);
    INFO(load_cause_name(cause));
    CHECK(*fresh.value(cause) == Approx(0.6));
    CHECK(*fresh.highest() == Approx(0.6));
    fresh.sample(sample_of(cause, 5), now += kS);
    CHECK(*fresh.value(cause) == Approx(0.6 + (1 - std::exp(-1.0 / 3)) * 0.4));
    for (int i = 0; i < 30; ++i) fresh.sample(sample_of(cause, 5), now += kS);
    CHECK(*fresh.value(cause) == Approx(1).epsilon(0.001));
  }
}

TEST_CASE("load: what is not measured is not known, never zero") {
  Load load{LoadScales{}};
  LoadSample s;
  load.sample(s, kS);
  CHECK(!load.highest());
  s.kv_ratio = 0.75, s.queue_wait_s = std::nan("");
  load.sample(s, 2 * kS);
  CHECK(*load.highest() == 0.5);
  CHECK(!load.value(LoadCause::kHeat));
  CHECK(!load.value(LoadCause::kQueue));
  s.kv_ratio.reset();  // the worker is gone
  load.sample(s, 3 * kS);
  CHECK(!load.value(LoadCause::kKv));
  s.memory_used_ratio = 0.98;  // without PSI the other signs count
  load.sample(s, 4 * kS);
  CHECK(*load.value(LoadCause::kMemory) == Approx(1));
  s.memory_pressure = 0;  // with PSI they don't
  Load other{LoadScales{}};
  other.sample(s, kS);
  CHECK(*other.value(LoadCause::kMemory) == 0);
  LoadSample cool;
  cool.heat_room_c = 40, cool.clock_ratio = 0.3, cool.is_throttled = false;  // a slow clock alone is a governor's choice
  other.sample(cool, kS);
  CHECK(*other.value(LoadCause::kHeat) == 0);
  Load throttled{LoadScales{}};
  cool.is_throttled = true;
  throttled.sample(cool, kS);
  CHECK(*throttled.value(LoadCause::kHeat) == 1);
  cool.clock_ratio.reset();
  Load counted{LoadScales{}};
  counted.sample(cool, kS);
  CHECK(*counted.value(LoadCause::kHeat) == 0.8);
}

TEST_CASE("ladder: the shipped one is good and says what design.md says") {
  Ladder ladder = ladder_of(shipped());
  REQUIRE(ladder.rungs.size() == kNumRungs);
  for (int i = 0; i < kNumRungs; ++i) CHECK(ladder.rungs[static_cast<size_t>(i)].kind == static_cast<RungKind>(i));
  CHECK(ladder.rungs[0].enter == 0.70);
  CHECK(ladder.rungs[1].hold_us == 5 * kS);
  CHECK(ladder.scales.kv.of(0.8) == Approx(ladder.rungs[2].enter));
  CHECK(ladder.rungs[3].enter == 0.90);
  CHECK(ladder.rungs[3].causes.size() == kNumLoadCauses);
  CHECK(ladder.rungs[4].enter == 0.95);
  LoadScales defaults;
  CHECK(ladder.scales.queue.one == defaults.queue.one);
  CHECK(ladder.scales.heat_room.one == defaults.heat_room.one);
  CHECK(ladder.scales.smoothing_s == defaults.smoothing_s);
}

TEST_CASE("ladder: what is wrong is named with file, line, value and range") {
  std::string rung = "[[rung]]\nname = \"shed\"\ncauses = [\"kv\"]\nenter = 0.9\nleave = 0.5\n";
  CHECK(error_of(rung) == "");
  CHECK(error_of("") == "");  // no rung: nothing is degraded
  auto with = [&](const std::string& from, const std::string& to) {
    std::string text = rung;
    text.replace(text.find(from), from.size(), to);
    return error_of(text);
  };
  CHECK(with("leave = 0.5", "leave = 0.95") == "l.toml:2: rung shed: leave must be < enter, got leave 0.95 and enter 0.9");
  CHECK(has(with("leave = 0.5", "leave = 0.9"), "leave must be < enter"));
  CHECK(with("enter = 0.9", "enter = 9") == "l.toml:4: rung.enter must be a number from 0 to 1, got 9");
  CHECK(has(with("enter = 0.9", "enter = \"a lot\""), "l.toml:4: rung.enter must be a number"));
  CHECK(has(with("\"kv\"", "\"noise\""), "got \"noise\""));
  CHECK(has(with("[\"kv\"]", "[]"), "rung.causes must be a list"));
  CHECK(has(with("\"shed\"", "\"sell\""), "must be one of logprobs"));
  CHECK(has(with("name = \"shed\"\n", ""), "name is missing"));
  CHECK(has(with("causes = [\"kv\"]\n", ""), "causes is missing"));
  CHECK(has(with("enter = 0.9", "enter = 0.9\ndwell_s = 0.5"), "from 1 to 3600, got 0.5"));
  CHECK(has(with("enter = 0.9", "enter = 0.9\nleave_hold_s = -1"), "rung.leave_hold_s must be a number from 0 to 600, got -1"));
  CHECK(has(with("enter = 0.9", "enter = 0.9\nmax_tokens = 5"), "belongs to the rung tokens only"));
  CHECK(has(with("\"shed\"", "\"tokens\""), "max_tokens is missing"));
  CHECK(has(with("enter = 0.9", "enter = 0.9\nspeed = 1"), "l.toml:5: rung.speed is not known here"));
  CHECK(has(error_of(rung + rung), "shed is given twice"));
  CHECK(has(error_of("[[rung]]\nname = \"weights-4bit\"\ncauses = [\"memory\"]\nenter = 0.9\nleave = 0.5\n"),
            "memory must not be among its causes"));
  CHECK(has(error_of("[load.queue]\nzero = 2\none = 2\n"), "zero and one of a load scale must differ"));
  CHECK(has(error_of("[load.noise]\nzero = 2\n"), "load.noise.zero is not known here"));
  CHECK(has(error_of("[load]\nsmoothing_s = 0\n"), "from 0.1 to 60, got 0"));
  CHECK(has(error_of("[[rung]\n"), "l.toml:1: "));
  CHECK(has(error_of("[[*ung]]\n"), "l.toml:1: "));
  CHECK(has(error_of("[load]\nstraße = 1\n"), "l.toml:2: "));
  CHECK(has(error_of("[[rung]]\nname = 1979-05-27\n"), "l.toml:2: name must be"));
}

TEST_CASE("policy: entered above enter, kept between, left below leave, after the dwell time") {
  Run run(kTwo);
  auto queue = [](double v) { return sample_of(LoadCause::kQueue, v); };
  run.steps(5, queue(0.6));
  CHECK(run.policy.active().empty());
  run.steps(20, queue(0.8));
  CHECK(run.policy.is_active(RungKind::kLogprobs));
  CHECK(!run.policy.is_active(RungKind::kShed));
  run.steps(30, queue(0.6));
  CHECK(run.policy.is_active(RungKind::kLogprobs));
  run.steps(15, queue(0.2));
  CHECK(!run.policy.is_active(RungKind::kLogprobs));
  run.steps(15, queue(1));
  CHECK(run.policy.is_active(RungKind::kShed));
  CHECK(!run.policy.sheds_normal());
  run.steps(14, queue(1));
  CHECK(run.policy.sheds_normal());
  run.steps(40, queue(0));
  CHECK(run.policy.active().empty());
  CHECK(!run.policy.sheds_normal());
}

TEST_CASE("policy: a lull shorter than leave_hold_s lets no rung go") {
  std::string text = kTwo;
  text.replace(text.find("leave = 0.75\n"), 13, "leave = 0.75\nleave_hold_s = 20\n");
  Run run(text);
  REQUIRE(run.policy.ladder().rungs[1].leave_hold_us == 20 * kS);
  const LoadSample full = sample_of(LoadCause::kQueue, 1), idle = sample_of(LoadCause::kQueue, 0);
  run.steps(30, full);
  REQUIRE(run.policy.is_active(RungKind::kShed));
  run.steps(15, idle);
  CHECK(!run.policy.is_active(RungKind::kLogprobs));  // without it: gone at once
  CHECK(run.policy.is_active(RungKind::kShed));
  run.steps(10, full);  // the count begins again
  run.steps(20, idle);
  CHECK(run.policy.is_active(RungKind::kShed));
  run.steps(2, idle);
  CHECK(!run.policy.is_active(RungKind::kShed));
  run.steps(30, full);
  REQUIRE(run.policy.is_active(RungKind::kShed));
  CHECK(run.policy.pin(RungKind::kShed, false));  // an operator does not wait
  run.step(full);
  CHECK(!run.policy.is_active(RungKind::kShed));
}

TEST_CASE("policy: a full queue sheds at once; causes that a rung does not name leave it alone") {
  Run run(kTwo);
  run.step(sample_of(LoadCause::kQueue, 0), true);
  CHECK(run.policy.is_active(RungKind::kShed));
  REQUIRE(run.changes.size() == 1);
  CHECK(run.changes[0].why == "queue full");
  CHECK(!run.policy.is_active(RungKind::kLogprobs));
  Run memory(shipped());
  memory.steps(100, sample_of(LoadCause::kMemory, 0.92));
  CHECK(memory.policy.active() == std::vector<RungKind>{RungKind::kTokens});
  CHECK(memory.policy.max_tokens() == 128);
  Run blind(kTwo);  // nothing is known: nothing is entered
  for (int i = 0; i < 100; ++i) blind.step(LoadSample{});
  CHECK(blind.policy.active().empty());
}

TEST_CASE("policy: hold, pin, clear and skip") {
  Run run(shipped());
  run.policy.skip(RungKind::kBatch, "the worker does it");
  run.steps(4, sample_of(LoadCause::kHeat, 1));
  CHECK(!run.policy.is_active(RungKind::kWeights4bit));  // 5 s above
  run.steps(3, sample_of(LoadCause::kHeat, 1));
  CHECK(run.policy.is_active(RungKind::kWeights4bit));
  CHECK(run.policy.pin(RungKind::kWeights4bit, false));
  run.step(sample_of(LoadCause::kHeat, 1));
  CHECK(!run.policy.is_active(RungKind::kWeights4bit));
  CHECK(run.policy.pin(RungKind::kLogprobs, true));
  run.step(sample_of(LoadCause::kQueue, 0));
  REQUIRE(run.policy.is_active(RungKind::kLogprobs));
  CHECK(run.changes[0].why == "pinned");
  run.steps(100, sample_of(LoadCause::kQueue, 0));
  CHECK(run.policy.is_active(RungKind::kLogprobs));
  CHECK(run.policy.pin(RungKind::kLogprobs, std::nullopt));
  run.step(sample_of(LoadCause::kQueue, 0));
  CHECK(!run.policy.is_active(RungKind::kLogprobs));
  CHECK(!run.policy.pin(RungKind::kBatch, true));
  run.steps(100, sample_of(LoadCause::kKv, 1));
  CHECK(!run.policy.is_active(RungKind::kBatch));
  Run two(kTwo);
  CHECK(!two.policy.pin(RungKind::kTokens, true));
  CHECK(two.policy.skip_reason(RungKind::kTokens) == "not on the ladder");
}

TEST_CASE("policy: on another ladder a rung that both have stays as it is") {
  Run run(kTwo);
  run.steps(30, sample_of(LoadCause::kQueue, 1));
  CHECK((run.policy.is_active(RungKind::kLogprobs) && run.policy.is_active(RungKind::kShed)));
  REQUIRE(run.policy.pin(RungKind::kLogprobs, true));
  std::string other = std::string(kTwo).substr(0, std::string(kTwo).rfind("[[rung]]"));
  other += "[[rung]]\nname = \"tokens\"\ncauses = [\"queue\"]\nenter = 0.9\nleave = 0.7\nmax_tokens = 16\n";
  run.policy.replace_ladder(ladder_of(other));
  CHECK((run.policy.is_active(RungKind::kLogprobs) && run.policy.pinned(RungKind::kLogprobs) == true));
  CHECK_FALSE(run.policy.is_active(RungKind::kShed));
  CHECK_FALSE(run.policy.pin(RungKind::kShed, true));
  CHECK_FALSE(run.policy.is_active(RungKind::kTokens));
  run.step(sample_of(LoadCause::kQueue, 1));
  CHECK(run.policy.max_tokens() == 16);
  run.policy.replace_ladder({});
  CHECK(run.policy.active().empty());
}

// Random curves: steps, ramps, noise, spikes, sensors that come and go, clocks that stand still and jump. Every second one on a ladder
// whose rungs wait before they let go.
TEST_CASE("policy: no load curve makes a rung flap, and none stays where the load has long left it") {
  constexpr int kLeaveHoldS = 20;
  std::string holding = shipped();
  for (size_t at = 0; (at = holding.find("\ndwell_s", at)) != std::string::npos; at += 40)
    holding.insert(at, "\nleave_hold_s = " + std::to_string(kLeaveHoldS));
  std::mt19937 random(7);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int round = 0; round < 300; ++round) {
    const bool holds = round % 2 == 1;
    Run run(holds ? holding : shipped());
    std::map<RungKind, int64_t> changed, dwell, loaded;  // `loaded`: last at or above `leave`
    for (const Rung& rung : run.policy.ladder().rungs) {
      dwell[rung.kind] = rung.dwell_us;
      REQUIRE(rung.leave_hold_us == (holds ? kLeaveHoldS * kS : 0));
    }
    double level[kNumLoadCauses] = {}, slope[kNumLoadCauses] = {};
    bool was_normal = false;
    for (int t = 0; t < 2000; ++t) {
      LoadSample s;
      for (int c = 0; c < kNumLoadCauses; ++c) {
        if (unit(random) < 0.03) level[c] = unit(random) * 1.3, slope[c] = (unit(random) - 0.5) * 0.1;
        level[c] = std::clamp(level[c] + slope[c] + (unit(random) - 0.5) * 0.2, 0.0, 1.3);
        if (unit(random) < 0.05) continue;  // not measured this time
        LoadSample one = sample_of(static_cast<LoadCause>(c), level[c]);
        if (c == 0) s.queue_wait_s = one.queue_wait_s;
        if (c == 1) s.token_gap_s = one.token_gap_s;
        if (c == 2) s.kv_ratio = one.kv_ratio;
        if (c == 3) s.memory_pressure = one.memory_pressure;
        if (c == 4) s.heat_room_c = one.heat_room_c;
      }
      run.now += unit(random) < 0.01 ? static_cast<int64_t>(unit(random) * 100) * kS : 0;
      const bool is_full = unit(random) < 0.02;
      run.step(s, is_full);
      for (const Rung& rung : run.policy.ladder().rungs) {
        const bool is_loaded = std::any_of(rung.causes.begin(), rung.causes.end(),
                                           [&](LoadCause c) { return run.load.value(c).value_or(-1) >= rung.leave; });
        if (is_loaded || (is_full && rung.kind == RungKind::kShed)) loaded[rung.kind] = run.now;
      }
      for (const auto& change : run.changes) {
        if (!change.is_active && holds) REQUIRE(run.now - loaded[change.kind] >= kLeaveHoldS * kS);
        auto before = changed.find(change.kind);
        if (before != changed.end()) REQUIRE(run.now - before->second >= dwell[change.kind]);
        changed[change.kind] = run.now;
      }
      if (run.policy.sheds_normal() != was_normal) {
        if (was_normal) CHECK(!run.policy.is_active(RungKind::kShed));  // it ends with the rung only
        was_normal = !was_normal;
      }
      REQUIRE((!run.policy.sheds_normal() || run.policy.is_active(RungKind::kShed)));
    }
    LoadSample idle = sample_of(LoadCause::kQueue, 0);
    run.steps(30 + (holds ? kLeaveHoldS : 0), idle);  // the overload is over: full quality within 30 s
    CHECK(run.policy.active().empty());
  }
}
