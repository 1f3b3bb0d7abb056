// Life with one worker: serving, limits, deadlines, cancelling, drain, bad and late models, slow
// readers.
#include <algorithm>
#include <atomic>
#include <set>

#include "box.h"

using namespace tandem;
using ipc::FinishReason;

TEST_CASE("a request is served, logged and counted once") {
  Box box;
  auto r = ask({1, 2, 3}, 30);
  r.sampling.n_top_logprobs = 0;
  r.prompt_logprobs = true;
  r.n_choices = 2;
  Reply reply = box.run(r);
  CHECK(reply.error_code == "");
  CHECK(reply.completion_tokens == 60);
  CHECK(reply.prompt_tokens == 3);
  CHECK(reply.prompt_logprobs == std::vector<int32_t>{1, 2, 3});
  CHECK(reply.finishes ==
        std::map<uint32_t, FinishReason>{{0, FinishReason::kLength}, {1, FinishReason::kLength}});
  CHECK(reply.logprobs[0].size() == 30);
  CHECK(reply.texts[0] != reply.texts[1]);
  auto rows = box.rows();
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].status == "length");
  CHECK(rows[0].finish_reason == "length");
  CHECK(rows[0].http_status == 200);
  CHECK(rows[0].completion_tokens == 60);
  CHECK(rows[0].n_dispatches == 1);
  CHECK(rows[0].ttft_ms > 0);
  CHECK(box.metric(Metric::kRequests, {"length"}) == 1);
  CHECK(box.metric(Metric::kGenerationTokens) == 60);
  CHECK(box.metric(Metric::kTimeToFirstToken) == 1);
  CHECK(box.metric(Metric::kInterTokenLatency) == 58);
}

TEST_CASE("limits are refused with numbers before anything is queued") {
  Box box("context=64 pool=50", [](Config* c) { c->limits_max_prompt_tokens = 55; });
  auto prompt = [](size_t n) { return std::vector<int32_t>(n, 7); };
  for (int round = 0; round < 20; ++round) {
    Reply r = box.run(ask(prompt(64), 1));
    CHECK(r.error_code == "context_length_exceeded");
    CHECK(r.http_status == 400);
    CHECK(r.error_message.find("64 tokens") != std::string::npos);
    CHECK(box.run(ask(prompt(200), 1)).error_code == "context_length_exceeded");
    CHECK(box.run(ask(prompt(40), 25)).error_code == "context_length_exceeded");
    CHECK(box.run(ask(prompt(40), 24)).error_code == "");
    Reply tall = box.run(ask(prompt(56), 1));
    CHECK(tall.error_code == "prompt_too_long");
    CHECK(tall.http_status == 413);
    CHECK(tall.error_message.find("55") != std::string::npos);
    CHECK(box.run(ask(prompt(50), 1)).error_code == "kv_pool_exceeded");
    CHECK(box.run(ask(prompt(49), 1)).error_code == "");
    CHECK(box.run(ask(prompt(49), 0)).error_code == "");
  }
  auto open_end = ask(prompt(40));
  open_end.max_tokens.reset();
  CHECK(box.run(open_end).completion_tokens == 24);
  CHECK(box.is_idle());
  CHECK(box.rows().size() == 61);
  CHECK(box.metric(Metric::kRequests, {"rejected"}) ==
        0);  // rows of refusals are the API's to report
}

TEST_CASE("deadlines: queued, before the first token, after it") {
  Box box("batch=1 step_us=3000");
  auto late = ask({1}, 3000);
  late.deadline_us = monotonic_us() + 150'000;
  Reply cut = box.run(late);
  CHECK(cut.error_code == "");
  CHECK(cut.finishes[0] == FinishReason::kDeadline);
  CHECK(cut.completion_tokens > 5);
  std::thread busy([&] { box.run(ask({2}, 300)); });
  std::vector<std::thread> more;
  for (int i = 0; i < 2; ++i) more.emplace_back([&] { box.run(ask({3}, 100)); });
  usleep(50'000);
  auto queued = ask({4}, 10);
  queued.deadline_us = monotonic_us() + 100'000;
  Reply waited = box.run(queued);
  CHECK(waited.error_code == "deadline_exceeded");
  CHECK(waited.http_status == 504);
  busy.join();
  for (auto& t : more) t.join();
  CHECK(box.metric(Metric::kRequests, {"deadline"}) == 2);
}

TEST_CASE("a client that leaves frees its place, wherever the request is") {
  Box box("batch=1 step_us=2000 chunk=4");
  auto leave_after = [&](int n_events) {
    auto stream = box.supervisor->submit(ask(std::vector<int32_t>(40, 5), 4000));
    REQUIRE(stream.ok());
    for (int i = 0; i < n_events; ++i) {
      while (stream.value()->next(std::chrono::milliseconds(100)).kind ==
             api::StreamEvent::Kind::kIdle) {
      }
    }
  };
  for (int n : {0, 1, 3}) {
    leave_after(n);
    CHECK(box.run(ask({1}, 1)).error_code == "");
  }
  REQUIRE(wait_until([&] { return box.is_idle(); }));
  CHECK(box.metric(Metric::kRequests, {"cancelled"}) == 3);
  CHECK(wait_until([&] { return box.metric(Metric::kRequestsRunning) == 0; }));
  CHECK(wait_until([&] { return box.metric(Metric::kKvPages, {"used"}) == 0; }));
}

TEST_CASE("a higher class takes the place of the youngest lower one, which goes on where it was") {
  Box box("batch=1 step_us=3000");
  Reply expected = box.run(ask({1}, 200));
  std::vector<std::unique_ptr<api::ResponseStream>> low;
  for (int i = 0; i < 3; ++i) {
    auto r = ask({1}, 200);
    r.priority = ipc::Priority::kLow;
    low.push_back(std::move(box.supervisor->submit(r).value()));
    REQUIRE(wait_until([&] { return box.metric(Metric::kRequestsRunning) == i + 1; }));
  }
  auto high = ask({1, 2}, 10);
  high.priority = ipc::Priority::kHigh;
  CHECK(box.run(high).error_code == "");
  CHECK(box.metric(Metric::kPreemptions, {"dispatch"}) == 1);
  for (auto& stream : low) {
    Reply got;
    while (!got.has_ended) got.take(stream->next(std::chrono::milliseconds(100)));
    CHECK(got.same_as(expected));
  }
  CHECK(box.metric(Metric::kResumes) == 0);
  REQUIRE(wait_until([&] { return box.is_idle(); }));
  auto rows = box.rows();
  CHECK(std::count_if(rows.begin(), rows.end(), [](const auto& r) { return r.n_dispatches == 2; }) == 1);
}

TEST_CASE("full queue: 429 with Retry-After; a higher class displaces the youngest of the lowest") {
  Box box("batch=1 step_us=2000", [](Config* c) { c->limits_max_queue = 2; });
  std::vector<std::unique_ptr<api::ResponseStream>> held;
  auto hold = [&](ipc::Priority p) {
    auto r = ask({1}, 2000);
    r.priority = p;
    auto s = box.supervisor->submit(r);
    if (s.ok()) held.push_back(std::move(s.value()));
    return s.ok() ? std::string() : s.error().code;
  };
  for (int i = 0; i < 3; ++i) {
    CHECK(hold(ipc::Priority::kNormal) == "");
    CHECK(wait_until([&] { return box.metric(Metric::kRequestsRunning) == i + 1; }));
  }
  CHECK(hold(ipc::Priority::kNormal) == "");
  CHECK(hold(ipc::Priority::kLow) == "");
  CHECK(hold(ipc::Priority::kLow) == "queue_full");
  CHECK(hold(ipc::Priority::kHigh) == "");  // takes the place of the low one
  Reply displaced;
  while (!displaced.has_ended) displaced.take(held[4]->next(std::chrono::milliseconds(100)));
  CHECK(displaced.error_code == "overloaded");
  CHECK(displaced.http_status == 429);
  CHECK(displaced.retry_after_s >= 1);
}

TEST_CASE("prepare and detokenize") {
  Box box;
  ipc::Prepare p;
  p.kind = ipc::Prepare::Kind::kText;
  p.text = "AB";
  auto done = box.supervisor->prepare(p, {monotonic_us() + 5'000'000, {}});
  REQUIRE(done.ok());
  CHECK(done.value().ids == std::vector<int32_t>{65, 66});
  p.text = "REFUSE";
  auto refused = box.supervisor->prepare(p, {monotonic_us() + 5'000'000, {}});
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == "template_error");
  CHECK(refused.error().http_status == 400);
  auto text = box.supervisor->detokenize({3, 4}, {monotonic_us() + 5'000'000, {}});
  REQUIRE(text.ok());
  CHECK(text.value() == " w3🙂 w4");
}

TEST_CASE("no worker until the deadline is a 503; a waiting client may leave") {
  Box box("load_ms=3000", {}, false);
  ipc::Prepare p;
  p.text = "A";
  auto late = box.supervisor->prepare(p, {monotonic_us() + 200'000, {}});
  REQUIRE(!late.ok());
  CHECK(late.error().http_status == 503);
  CHECK(late.error().retry_after_s.value_or(0) >= 1);
  auto gone = box.supervisor->prepare(p, {monotonic_us() + 20'000'000, [] { return true; }});
  REQUIRE(!gone.ok());
  CHECK(gone.error().code == "client_gone");
  CHECK(box.supervisor->readiness().state == api::Readiness::State::kWarming);
  auto waits = box.supervisor->prepare(p, {monotonic_us() + 20'000'000, {}});
  CHECK(waits.ok());
}

TEST_CASE("refused model: cause on readiness, no restart loop, serves once the file is replaced") {
  Box box("refuse=78", {}, false);
  REQUIRE(wait_until(
      [&] { return box.supervisor->readiness().cause.find("field refuse") != std::string::npos; }));
  CHECK(box.supervisor->readiness().state == api::Readiness::State::kDead);
  usleep(1'500'000);
  CHECK(box.restarts() == 1);
  Reply r = box.run(ask({1}, 1));
  CHECK(r.http_status == 503);
  CHECK(r.retry_after_s >= 1);
  box.write_model("context=128");
  REQUIRE(wait_until([&] { return box.is_ready(); }));
  CHECK(box.run(ask({1}, 5)).completion_tokens == 5);
}

TEST_CASE("refused model: a new configuration is tried at once") {
  Box box("refuse=78", {}, false);
  REQUIRE(wait_until(
      [&] { return box.supervisor->readiness().state == api::Readiness::State::kDead; }));
  std::ofstream(box.dir + "/other.gguf") << "context=99";
  Config other = box.config;
  other.model_path = box.dir + "/other.gguf";
  box.supervisor->reload(other, {});
  REQUIRE(wait_until([&] { return box.is_ready(); }));
  CHECK(box.supervisor->model_name() == "other");
  CHECK(box.supervisor->model()->context_tokens == 99);
  Config limited = other;
  limited.limits_max_prompt_tokens = 3;
  limited.model_path = "/not/taken/over/while/a/worker/runs";
  box.supervisor->reload(limited, {});
  REQUIRE(wait_until([&] {
    return box.run(ask({1, 2, 3, 4}, 1)).error_code == "prompt_too_long";
  }));
  CHECK(box.run(ask({1, 2, 3}, 1)).error_code == "");
  CHECK(box.supervisor->model_name() == "other");
}

TEST_CASE("a model that comes late is picked up; an unreadable one is explained") {
  Box box("-", {}, false);
  REQUIRE(wait_until(
      [&] { return box.supervisor->readiness().cause.find(box.model) != std::string::npos; }));
  CHECK(box.supervisor->readiness().state == api::Readiness::State::kDead);
  box.write_model("");
  CHECK(wait_until([&] { return box.is_ready(); }));
}

TEST_CASE("drain finishes what runs, refuses what comes, then aborts") {
  SECTION("in time") {
    Box box("step_us=2000");
    std::thread drainer;
    Reply r = box.run(ask({1}, 60), [&] {
      if (!drainer.joinable()) drainer = std::thread([&] { box.supervisor->drain(); });
    });
    drainer.join();
    CHECK(r.completion_tokens == 60);
    box.thread.join();
    Reply late = box.run(ask({1}, 5));
    CHECK(late.error_code == "draining");
    CHECK(late.http_status == 503);
    CHECK(late.retry_after_s >= 1);
  }
  SECTION("out of time") {
    Box box("step_us=5000", [](Config* c) { c->workers_drain_timeout_ms = 200; });
    std::atomic<bool> has_begun{false};
    Reply r;
    std::thread client([&] { r = box.run(ask({1}, 4000), [&] { has_begun = true; }); });
    REQUIRE(wait_until([&] { return has_begun.load(); }));
    box.stop();
    client.join();
    CHECK(r.error_code == "aborted");
    CHECK(box.rows()[0].status == "aborted");
    CHECK(box.metric(Metric::kRequests, {"aborted"}) == 1);
  }
}

TEST_CASE("a slow reader is cut and disturbs nobody") {
  Box box("step_us=200", [](Config* c) { c->server_slow_reader_timeout_ms = 300; });
  auto slow = box.supervisor->submit(ask({9}, 4000));
  REQUIRE(slow.ok());
  REQUIRE(slow.value()->next(std::chrono::seconds(5)).kind == api::StreamEvent::Kind::kText);
  CHECK(box.run(ask({1}, 50)).completion_tokens == 50);
  REQUIRE(wait_until([&] { return box.metric(Metric::kStreamsCut) == 1; }));
  CHECK(slow.value()->next(std::chrono::seconds(1)).kind == api::StreamEvent::Kind::kError);
  CHECK(box.metric(Metric::kRequests, {"cancelled"}) == 1);
  CHECK(box.run(ask({1}, 5)).completion_tokens == 5);
}

TEST_CASE("one failed request leaves its neighbours alone") {
  Box box("step_us=1000");
  Reply bad, good;
  std::thread neighbour([&] { good = box.run(ask({1}, 80)); });
  bad = box.run(ask({900004}, 80));
  neighbour.join();
  CHECK(bad.error_code == "worker_failed");
  CHECK(bad.error_message == "made to fail");
  CHECK(good.completion_tokens == 80);
  CHECK(box.restarts() == 0);
}

TEST_CASE("counters equal rows over a mixed load") {
  Box box("step_us=300 context=512", [](Config* c) { c->limits_max_queue = 8; });
  std::vector<std::thread> clients;
  std::atomic<int> n_refused{0};
  for (int i = 0; i < 24; ++i) {
    clients.emplace_back([&, i] {
      auto r = ask({i, i + 1}, static_cast<uint32_t>(10 + i));
      if (i % 8 == 3) r.prompt.push_back(900004);
      if (i % 8 == 5) {
        auto s = box.supervisor->submit(r);
        if (!s.ok()) ++n_refused;
        return;  // leaves at once
      }
      std::string code = box.run(r).error_code;
      if (code == "queue_full") ++n_refused;
    });
  }
  for (auto& c : clients) c.join();
  REQUIRE(wait_until([&] { return box.is_idle(); }));
  auto rows = box.rows();
  std::map<std::string, int> outcomes;
  std::set<std::string> ids;
  int64_t prompt = 0, completion = 0;
  for (const auto& row : rows) {
    ++outcomes[row.status], prompt += row.prompt_tokens, completion += row.completion_tokens;
    ids.insert(row.id);
  }
  CHECK(rows.size() == 24u - static_cast<size_t>(n_refused));
  CHECK(ids.size() == rows.size());
  for (const char* o : {"stop", "length", "deadline", "aborted", "failed", "cancelled", "rejected"})
    CHECK(box.metric(Metric::kRequests, {o}) == outcomes[o]);
  CHECK(box.metric(Metric::kPromptTokens) == static_cast<double>(prompt));
  CHECK(box.metric(Metric::kGenerationTokens) == static_cast<double>(completion));
}
