// Rungs at work: what a touched reply gets and says, what an untouched one never claims; load on a real loop.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "box.h"

using namespace tandem;
using Action = api::AdminCommand::Action;

namespace {

Ladder ladder(const std::string& more = "") {
  auto parsed = parse_ladder(R"(
[[rung]]
name = "logprobs"
causes = ["queue"]
enter = 0.7
leave = 0.5
dwell_s = 1
[[rung]]
name = "weights-4bit"
causes = ["heat"]
enter = 0.7
leave = 0.5
[[rung]]
name = "tokens"
causes = ["heat"]
enter = 0.9
leave = 0.5
max_tokens = 20
[[rung]]
name = "shed"
causes = ["heat"]
enter = 0.95
leave = 0.5
dwell_s = 1
)" + more,
                             "test");
  if (!parsed.ok()) FAIL(parsed.status().message());
  return *parsed;
}

struct DegradeBox : Box {
  explicit DegradeBox(const std::string& script = "step_us=500", const std::string& more = "",
                      const std::function<void(Config*)>& change = {})
      : Box(script, change, true, ladder(more)) {}
  api::ApiResult<std::string> pin(const std::string& rung, std::optional<bool> on) {
    api::AdminCommand command;
    command.action = Action::kDegrade, command.rung = rung, command.pin = on;
    auto done = supervisor->admin(command);
    usleep(50'000);  // the loop's next turn
    return done;
  }
  bool is_active(const char* rung) { return metric(Metric::kDegradationActive, {rung}) == 1; }
};

api::GenerateRequest ask_as(ipc::Priority priority, uint32_t max_tokens) {
  auto r = ask({1, 2, 3}, max_tokens);
  r.priority = priority;
  return r;
}

}  // namespace

TEST_CASE("rung logprobs: whoever asked gets none and is told; the others are untouched") {
  DegradeBox box;
  auto with = [] {
    auto r = ask({1, 2, 3}, 10);
    r.sampling.n_top_logprobs = 2, r.prompt_logprobs = true;
    return r;
  };
  Reply before = box.run(with());
  CHECK(before.logprobs[0].size() == 10);
  CHECK(before.degraded.empty());
  REQUIRE(box.pin("logprobs", true).ok());
  REQUIRE(wait_until([&] { return box.is_active("logprobs"); }));
  CHECK(wait_until([&] { return box.supervisor->readiness().state == api::Readiness::State::kDegraded; }));
  CHECK(box.supervisor->readiness().cause == "quality is reduced: logprobs (pinned)");
  Reply touched = box.run(with());
  CHECK(touched.logprobs[0].empty());
  CHECK(touched.prompt_logprobs.empty());
  CHECK(touched.degraded == std::set<std::string>{"logprobs"});
  CHECK(touched.texts == before.texts);
  CHECK(box.rows()[0].degradation == "logprobs");
  CHECK(box.run(ask({1, 2, 3}, 10)).degraded.empty());
  CHECK(box.rows()[0].degradation == "");
  CHECK(box.metric(Metric::kRequestsDegraded, {"logprobs"}) == 1);
  REQUIRE(box.pin("logprobs", std::nullopt).ok());
  REQUIRE(wait_until([&] { return !box.is_active("logprobs"); }));
  CHECK(box.run(with()).same_as(before));
  CHECK(box.metric(Metric::kDegradationChanges, {"logprobs"}) == 2);
}

TEST_CASE("rung logprobs: a request keeps what it began with, over a worker's death too") {
  DegradeBox box("step_us=3000");
  auto r = ask({1, 2, 3}, 100);
  r.sampling.n_top_logprobs = 0;
  Reply whole = box.run(r);
  REQUIRE(wait_until([&] { return box.metric(Metric::kRequestsRunning) == 0; }));  // or the next wait sees this one
  Reply reply;
  std::thread client([&] {
    auto again = ask({1, 2, 3}, 100);
    again.sampling.n_top_logprobs = 0;
    reply = box.run(again);
  });
  REQUIRE(wait_until([&] { return box.metric(Metric::kRequestsRunning) == 1; }));
  REQUIRE(box.pin("logprobs", true).ok());
  REQUIRE(box.strike());
  client.join();
  CHECK(reply.same_as(whole));
  CHECK(reply.degraded.empty());
}

TEST_CASE("rung tokens: low priority ends at the cap and says so only if the cap ended it") {
  DegradeBox box;
  REQUIRE(box.pin("tokens", true).ok());
  REQUIRE(wait_until([&] { return box.is_active("tokens"); }));
  Reply low = box.run(ask_as(ipc::Priority::kLow, 60));
  CHECK(low.completion_tokens == 20);
  CHECK(low.finishes[0] == ipc::FinishReason::kLength);
  CHECK(low.degraded == std::set<std::string>{"tokens"});
  CHECK(low.reason == "degraded");
  Reply little = box.run(ask_as(ipc::Priority::kLow, 10));
  CHECK(little.completion_tokens == 10);
  CHECK(little.degraded.empty());
  Reply exact = box.run(ask_as(ipc::Priority::kLow, 20));
  CHECK(exact.degraded.empty());
  Reply normal = box.run(ask_as(ipc::Priority::kNormal, 60));
  CHECK(normal.completion_tokens == 60);
  CHECK(normal.degraded.empty());
  auto stops = ask_as(ipc::Priority::kLow, 60);
  stops.deadline_us = monotonic_us() + 4'000;  // ended by its deadline, not by the cap
  Reply late = box.run(stops);
  CHECK(late.degraded.count("tokens") == (late.completion_tokens == 20 && late.reason == "degraded" ? 1 : 0));
  CHECK(box.metric(Metric::kRequestsDegraded, {"tokens"}) >= 1);
}

TEST_CASE("rung shed: low gets 429 with Retry-After, high and normal are served") {
  DegradeBox box;
  REQUIRE(box.pin("shed", true).ok());
  REQUIRE(wait_until([&] { return box.is_active("shed"); }));
  Reply low = box.run(ask_as(ipc::Priority::kLow, 5));
  CHECK(low.http_status == 429);
  CHECK(low.error_code == "overloaded");
  CHECK(low.retry_after_s > 0);
  CHECK(box.run(ask_as(ipc::Priority::kNormal, 5)).error_code == "");
  CHECK(box.run(ask_as(ipc::Priority::kHigh, 5)).error_code == "");
  CHECK(box.metric(Metric::kRequestsDegraded, {"shed"}) == 1);
  REQUIRE(box.pin("shed", false).ok());
  CHECK(wait_until([&] { return box.run(ask_as(ipc::Priority::kLow, 5)).error_code == ""; }));
}

TEST_CASE("rung batch: fewer at the worker, who waited for it is told, and all places come back") {
  const std::string rung = "[[rung]]\nname = \"batch\"\ncauses = [\"kv\"]\nenter = 0.6\nleave = 0.5\ndwell_s = 1\n";
  DegradeBox box("batch=8 step_us=20000", rung);
  const auto run = [&](int n) {  // replies of n requests at once
    std::vector<Reply> replies(static_cast<size_t>(n));
    std::vector<std::thread> clients;
    for (Reply& reply : replies) clients.emplace_back([&] { reply = box.run(ask({1, 2, 3}, 30)); });
    for (auto& c : clients) c.join();
    return replies;
  };
  for (const Reply& r : run(8)) CHECK(r.degraded.empty());
  REQUIRE(box.pin("batch", true).ok());
  REQUIRE(wait_until([&] { return box.is_active("batch"); }));
  CHECK(wait_until([&] { return box.supervisor->readiness().cause == "quality is reduced: batch (pinned)"; }));
  usleep(6'000'000);  // 8 places become 2
  double most = 0;
  std::atomic<bool> is_over = false;
  std::thread watch([&] {
    for (; !is_over; usleep(2'000)) most = std::max(most, box.metric(Metric::kRequestsRunning));
  });
  const std::vector<Reply> replies = run(6);
  is_over = true;
  watch.join();
  CHECK(most == 2);
  const auto touched = std::count_if(replies.begin(), replies.end(), [](const Reply& r) { return r.degraded == std::set<std::string>{"batch"}; });
  const auto untouched = std::count_if(replies.begin(), replies.end(), [](const Reply& r) { return r.degraded.empty(); });
  CHECK(touched == 4);
  CHECK(untouched == 2);
  CHECK(box.metric(Metric::kRequestsDegraded, {"batch"}) == 4);
  REQUIRE(box.pin("batch", std::nullopt).ok());
  CHECK(wait_until([&] { return box.supervisor->readiness().cause == "quality is reduced: batch (growing back)"; }));
  CHECK(box.is_active("batch"));
  REQUIRE(wait_until([&] { return !box.is_active("batch"); }, 20'000));
  CHECK(wait_until([&] { return box.is_ready(); }));
  for (const Reply& r : run(8)) CHECK(r.degraded.empty());
}

TEST_CASE("rung weights-4bit: the worker goes over to the lean set and back, each reply says whether it was touched") {
  DegradeBox box("step_us=2000 lean=1");
  auto mine = [] { return ask({1, 2, 3}); };
  Reply full = box.run(mine());
  CHECK(full.degraded.empty());
  CHECK(box.rows()[0].weights == "full");
  Reply half;
  std::thread client([&] { half = box.run(mine()); });
  REQUIRE(wait_until([&] { return box.metric(Metric::kRequestsRunning) == 1; }));
  usleep(30'000);
  REQUIRE(box.pin("weights-4bit", true).ok());
  client.join();
  CHECK(half.error_code == "");
  CHECK(half.completion_tokens == 60);
  CHECK(half.degraded == std::set<std::string>{"weights-4bit"});
  CHECK(box.rows()[0].weights == "full,4-bit");
  CHECK(box.rows()[0].degradation == "weights-4bit");
  size_t n_same = 0;
  while (n_same < half.texts[0].size() && half.texts[0][n_same] == full.texts[0][n_same]) ++n_same;
  CHECK(n_same > 0);
  CHECK(n_same < half.texts[0].size());
  Reply lean = box.run(mine());
  CHECK(lean.degraded == std::set<std::string>{"weights-4bit"});
  CHECK(lean.texts[0] != full.texts[0]);
  CHECK(box.rows()[0].weights == "4-bit");
  CHECK(box.run(mine()).same_as(lean));
  REQUIRE(box.pin("weights-4bit", false).ok());
  REQUIRE(wait_until([&] { return !box.is_active("weights-4bit"); }));
  CHECK(box.run(mine()).same_as(full));
  CHECK(box.rows()[0].degradation == "");
  CHECK(box.metric(Metric::kRequestsDegraded, {"weights-4bit"}) == 3);
}

// The fake worker ends itself when it is to replay a token that the named set would not have given.
TEST_CASE("rung weights-4bit: a worker's death keeps the sets that computed what is known, the new worker is told the rung") {
  DegradeBox box("step_us=2000 lean=1");
  auto mine = [] { auto r = ask({1, 2, 3}, 200); r.n_choices = 2; return r; };
  Reply full = box.run(mine()), reply;
  std::thread client([&] { reply = box.run(mine()); });
  REQUIRE(wait_until([&] { return box.metric(Metric::kRequestsRunning) == 1; }));
  for (bool is_lean : {true, false, true}) {
    usleep(40'000);
    REQUIRE(box.pin("weights-4bit", is_lean).ok());
    usleep(20'000);
    REQUIRE(box.strike());
    REQUIRE(wait_until([&] { return box.is_ready() || box.is_active("weights-4bit"); }));
  }
  client.join();
  CHECK(reply.error_code == "");
  CHECK(reply.completion_tokens == 400);
  CHECK(reply.degraded == std::set<std::string>{"weights-4bit"});
  CHECK(box.rows()[0].weights == "full,4-bit");
  CHECK(box.rows()[0].n_dispatches >= 3);
  CHECK(box.metric(Metric::kQuarantined) == 0);
  Reply lean = box.run(mine());
  CHECK(box.rows()[0].weights == "4-bit");
  CHECK(lean.texts[0] != full.texts[0]);
}

TEST_CASE("rungs that are unknown, not on the ladder or without effect cannot be pinned") {
  DegradeBox box;
  CHECK(box.pin("nonsense", true).error().code == "invalid_value");
  CHECK(box.pin("batch", true).error().message.find("not on the ladder") != std::string::npos);
  CHECK(box.pin("weights-4bit", true).error().message.find("no lean weight set") != std::string::npos);
  Box off;  // no ladder at all
  api::AdminCommand command;
  command.action = Action::kDegrade, command.rung = "shed", command.pin = true;
  CHECK(off.supervisor->admin(command).error().code == "admin_failed");
}

TEST_CASE("load on a real loop: a queue that waits enters the rung, an empty one leaves it; a full one sheds") {
  DegradeBox box("batch=1 step_us=3000", "[load]\nsmoothing_s = 0.2\n[load.queue]\nzero = 0.2\none = 1.0\n",
                 [](Config* c) { c->limits_max_queue = 6; });
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back([&] { box.run(ask({1}, 200)); });
  CHECK(wait_until([&] { return box.is_active("logprobs"); }));
  CHECK(box.metric(Metric::kLoad, {"queue"}) > 0.7);
  CHECK(box.supervisor->status_json().find("\"rung\":\"logprobs\",\"causes\":\"queue\"") != std::string::npos);
  for (auto& c : clients) c.join();
  CHECK(wait_until([&] { return !box.is_active("logprobs"); }, 30'000));
  CHECK(wait_until([&] { return box.is_ready(); }));
  CHECK(std::isnan(box.metric(Metric::kLoad, {"heat"})) == (box.supervisor->status_json().find("\"heat\":{\"value\":null") != std::string::npos));
}
