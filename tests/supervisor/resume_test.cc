// Death of the worker: nothing is lost, nothing is repeated, counters only rise.
#include <atomic>
#include <random>

#include "box.h"

using namespace tandem;

namespace {

// Requests of all kinds: seeds, two choices, log-probabilities, prompt log-probabilities, long
// prompts.
api::GenerateRequest kind(int i) {
  std::vector<int32_t> prompt(static_cast<size_t>(1 + 60 * (i % 4)), i);
  auto r = ask(prompt, static_cast<uint32_t>(20 + 10 * (i % 5)), static_cast<uint64_t>(i));
  if (i % 3 == 1) r.n_choices = 2;
  if (i % 3 != 0) r.sampling.n_top_logprobs = 0;
  if (i % 4 == 2) r.prompt_logprobs = true;
  r.sampling.ignore_eos = i % 2 == 0;
  return r;
}
constexpr int kKinds = 12;

std::vector<Reply> expected_replies(Box* box) {
  std::vector<Reply> replies;
  for (int i = 0; i < kKinds; ++i) replies.push_back(box->run(kind(i)));
  return replies;
}

double counter_sum(const std::string& text) {
  double sum = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.find("_total") != std::string::npos && line[0] != '#')
      sum += std::stod(line.substr(line.rfind(' ') + 1));
  }
  return sum;
}

}  // namespace

TEST_CASE("a hundred kills at random moments: every stream comes out byte for byte") {
  Box box("step_us=500 chunk=16 load_ms=10");
  std::vector<Reply> expected = expected_replies(&box);
  for (const Reply& r : expected) REQUIRE((r.error_code.empty() && r.completion_tokens > 0));
  std::mt19937 random(20261129);
  std::map<std::string, int> hit;
  int kills = 0, round = 0;
  double last_sum = 0;
  while (kills < 100) {
    ++round;
    std::vector<std::thread> clients;
    std::vector<Reply> got(kKinds);
    std::atomic<int> n_open{kKinds}, n_events{0};
    for (int i = 0; i < kKinds; ++i) {
      clients.emplace_back([&, i] {
        got[static_cast<size_t>(i)] = box.run(kind(i), [&] { ++n_events; });
        --n_open;
      });
    }
    while (n_open > 0) {
      // Every fourth kill may come before anything has moved; always doing so would only show the
      // back-off.
      int seen = n_events;
      if (kills % 4 != 0) wait_until([&] { return n_open == 0 || n_events > seen; });
      usleep(std::uniform_int_distribution<useconds_t>(0, 40'000)(random));
      std::string status = box.supervisor->status_json();
      if (n_open == 0 || !box.strike()) continue;
      ++kills;
      for (const char* phase : {"queued", "prefill", "decode"}) {
        if (status.find("\"phase\":\"" + std::string(phase)) != std::string::npos) ++hit[phase];
      }
      double sum = counter_sum(box.supervisor->metrics_text());
      CHECK(sum >= last_sum);
      last_sum = sum;
    }
    for (auto& c : clients) c.join();
    for (size_t i = 0; i < kKinds; ++i) {
      INFO("kind " << i << " round " << round << " error " << got[i].error_code << " "
                   << got[i].error_message);
      CHECK(got[i].same_as(expected[i]));
    }
  }
  for (const char* phase : {"queued", "prefill", "decode"}) CHECK(hit[phase] > 0);
  CHECK(box.metric(Metric::kQuarantined) == 0);
  CHECK(box.rows().size() == static_cast<size_t>((round + 1) * kKinds));
  CHECK(box.metric(Metric::kRequests, {"failed"}) == 0);
  CHECK(box.metric(Metric::kWorkerRestarts, {"both", "killed"}) > 50);
}

TEST_CASE("ten kills in a row during sixteen streams, flowing again within a second of each") {
  Box box("batch=16 step_us=4000");
  Reply expected = box.run(ask({1, 2}, 300));
  std::vector<std::thread> clients;
  std::vector<Reply> got(16);
  std::atomic<int64_t> last_event{0};
  std::atomic<int> n_open{16};
  for (size_t i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      got[i] = box.run(ask({1, 2}, 300), [&] { last_event = monotonic_us(); });
      --n_open;
    });
  }
  int64_t worst = 0;
  for (int k = 0; k < 10; ++k) {
    REQUIRE(wait_until([&] { return last_event != 0 && box.is_ready(); }));
    usleep(30'000);
    int64_t pid = box.pid(), before = monotonic_us();
    REQUIRE(box.strike());
    REQUIRE(wait_until([&] { return box.pid() != pid && box.pid() != 0; }));
    int64_t restarted = monotonic_us();
    REQUIRE(wait_until([&] { return last_event > restarted; }));
    worst = std::max(worst, last_event - before);
  }
  CHECK(n_open == 16);
  for (auto& c : clients) c.join();
  for (const Reply& r : got) CHECK(r.same_as(expected));
  CHECK(worst < 1'000'000);
  CHECK(box.metric(Metric::kResumes) == 160);
}

TEST_CASE("poison is quarantined, its unlucky neighbours are not") {
  for (int32_t poison : {900000, 900001, 900003}) {
    INFO("poison " << poison);
    Box box("batch=8 step_us=1000");
    Reply expected = box.run(ask({1}, 100));
    std::vector<std::thread> clients;
    std::vector<Reply> got(8);
    for (size_t i = 0; i < 8; ++i)
      clients.emplace_back(
          [&, i] { got[i] = box.run(i == 3 ? ask({poison}, 100) : ask({1}, 100)); });
    for (auto& c : clients) c.join();
    for (size_t i = 0; i < 8; ++i) {
      INFO("client " << i << " " << got[i].error_code << " " << got[i].error_message);
      if (i == 3) {
        CHECK(got[i].error_code == "request_quarantined");
        CHECK(got[i].http_status == 500);
      } else {
        CHECK(got[i].same_as(expected));
      }
    }
    CHECK(box.metric(Metric::kQuarantined) == 1);
    CHECK(box.metric(Metric::kRequests, {"failed"}) == 1);
    CHECK(box.metric(Metric::kWorkerRestarts, {"both", "crash"}) >= 3);
    CHECK(box.run(ask({2}, 5)).completion_tokens == 5);
  }
}

TEST_CASE("a prompt that kills the tokenizer is quarantined too") {
  Box box;
  ipc::Prepare p;
  p.text = "ABORT";
  auto poisoned = box.supervisor->prepare(p, {monotonic_us() + 20'000'000, {}});
  REQUIRE(!poisoned.ok());
  CHECK(poisoned.error().code == "request_quarantined");
  p.text = "A";
  CHECK(box.supervisor->prepare(p, {monotonic_us() + 20'000'000, {}}).ok());
}

TEST_CASE("SIGKILL never counts against a request") {
  Box box("step_us=1000 load_ms=20 chunk=1");
  Reply expected = box.run(ask(std::vector<int32_t>(50, 3), 20));
  std::atomic<bool> is_done{false};
  Reply got;
  std::thread client([&] {
    got = box.run(ask(std::vector<int32_t>(50, 3), 20));
    is_done = true;
  });
  for (int i = 0; i < 5 && !is_done; ++i) {  // each before the prompt is through
    REQUIRE(wait_until([&] { return is_done || box.metric(Metric::kRequestsRunning) > 0; }));
    box.strike();
    usleep(5'000);
  }
  client.join();
  CHECK(got.same_as(expected));
  CHECK(box.metric(Metric::kQuarantined) == 0);
}

TEST_CASE("a stopped worker is noticed by readiness, then by the watchdog; its streams go on") {
  Box box("step_us=2000", [](Config* c) { c->workers_watchdog_ms = 800; });
  Reply expected = box.run(ask({1}, 200));
  std::atomic<int> n_events{0};
  Reply got;
  std::thread client([&] { got = box.run(ask({1}, 200), [&] { ++n_events; }); });
  REQUIRE(wait_until([&] { return n_events > 3; }));
  REQUIRE(box.strike(SIGSTOP));
  CHECK(wait_until(
      [&] { return box.supervisor->readiness().state == api::Readiness::State::kDead; }));
  client.join();
  CHECK(got.same_as(expected));
  CHECK(box.metric(Metric::kWorkerRestarts, {"both", "watchdog"}) == 1);
}

TEST_CASE("a request that hangs the worker is found and refused") {
  Box box("", [](Config* c) { c->workers_watchdog_ms = 300; });
  Reply r = box.run(ask({900002}, 20));
  CHECK(r.error_code == "request_quarantined");
  CHECK(box.metric(Metric::kWorkerRestarts, {"both", "watchdog"}) >= 3);
  CHECK(box.run(ask({1}, 5)).completion_tokens == 5);
}

TEST_CASE("a worker that talks nonsense is ended") {
  Box box;
  Reply r = box.run(ask({900005}, 20));
  CHECK(r.error_code == "request_quarantined");
  CHECK(box.metric(Metric::kWorkerRestarts, {"both", "internal"}) >= 3);
}

TEST_CASE("a load that says nothing is ended, one that reports progress is not") {
  Box slow("load_ms=1200", [](Config* c) { c->workers_watchdog_ms = 300; });
  CHECK(slow.restarts() == 0);
  Box silent(
      "silent_load=1", [](Config* c) { c->workers_watchdog_ms = 200; }, false);
  CHECK(wait_until([&] {
    return silent.metric(Metric::kWorkerRestarts, {"both", "watchdog"}) >= 3;
  }));
  CHECK(wait_until(
      [&] { return silent.supervisor->readiness().state == api::Readiness::State::kDead; }));
}

TEST_CASE("idle stays ready, through restarts too") {
  Box box("", [](Config* c) { c->workers_watchdog_ms = 300; });
  usleep(1'000'000);
  CHECK(box.is_ready());
  CHECK(box.restarts() == 0);
  for (int i = 0; i < 3; ++i) {
    int64_t pid = box.pid();
    REQUIRE(box.strike());
    REQUIRE(wait_until([&] { return box.pid() != pid && box.is_ready(); }));
  }
  CHECK(box.restarts() == 3);
  CHECK(box.metric(Metric::kWorkerUp, {"both", "cpu"}) == 1);
}
