// Many, slow, leaving and silent clients over real sockets (field cases C-20, C-24, C-50).
#include <algorithm>
#include <atomic>
#include <thread>

#include "base/clock.h"
#include "server_fixture.h"

namespace tandem::api {
namespace {

// Longer than any test waits.
Script endless(const GenerateRequest& r, int delay_ms, const std::string& text = "word ") {
  Script script;
  const int n = delay_ms >= 100 ? 600 : 3000;
  for (int i = 0; i < n; ++i) script.push_back({text_event(0, text), delay_ms});
  script.push_back({choice_end(0), 0});
  script.push_back({end_event(static_cast<int64_t>(r.prompt.size()), n), 0});
  return script;
}

// Waits until `condition` holds; generous, because the machine may be busy.
template <typename F>
bool eventually(F condition, int timeout_ms = 20000) {
  int64_t until = monotonic_us() + timeout_ms * 1000;
  while (!condition()) {
    if (monotonic_us() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace

TEST_CASE("connections: heads and bodies have deadlines, idle connections an end") {
  ServerFixture f;
  f.config.server_header_timeout_ms = 300;
  f.config.server_body_timeout_ms = 300;
  f.config.server_idle_timeout_ms = 100;
  int port = f.start();
  RawClient loris(port);
  loris.send("GET /health HTTP/1.1\r\nHost: local");
  CHECK(loris.read_reply().status == 408);
  CHECK(loris.is_closed(10000));
  RawClient dripping(port);  // each byte in time, the whole not
  dripping.send("GET /health HTTP/1.1\r\n");
  bool is_cut = false;
  for (int i = 0; i < 100 && !is_cut; ++i) {
    dripping.send("X");
    is_cut = dripping.is_closed(20);
  }
  CHECK(is_cut);
  RawClient slow_body(port);
  slow_body.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{");
  CHECK(slow_body.read_reply().status == 408);
  RawClient silent(port);
  CHECK(silent.is_closed(10000));
  RawClient idle(port);
  idle.send(get("/health"));
  CHECK(idle.read_reply().status == 200);
  CHECK(idle.is_closed(10000));
}

TEST_CASE("connections: idle ones hold no thread") {
  ServerFixture f;
  int port = f.start();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(std::make_unique<RawClient>(port));
    if (i % 2 == 0) idle.back()->send("GET /health HT");  // and half of them are slow
  }
  for (int i = 0; i < 20; ++i) CHECK(fetch(port, get("/v1/models"), 5000).status == 200);
}

TEST_CASE("connections: probes answer while every connection streams (C-50)") {
  ServerFixture f;
  f.config.server_max_connections = 256;
  f.service.script = [](const GenerateRequest& r) { return ApiResult<Script>(endless(r, 100)); };
  int port = f.start();
  std::vector<std::unique_ptr<RawClient>> streams;
  for (int i = 0; i < 256; ++i) {
    streams.push_back(std::make_unique<RawClient>(port));
    streams.back()->send(post("/v1/chat/completions", kChatStream));
  }
  REQUIRE(eventually([&] { return f.service.n_live == 256; }));
  std::vector<std::unique_ptr<RawClient>> waiting;  // beyond the limit
  int n_refused = 0;
  for (int i = 0; i < 50; ++i) {
    waiting.push_back(std::make_unique<RawClient>(port));
    waiting.back()->send(post("/v1/chat/completions", kChatStream));
    RawReply reply = waiting.back()->read_reply();
    n_refused += reply.status == 503 && reply.headers["retry-after"] == "1" &&
                 str(json(reply.body), "error", "code") == "too_many_connections";
  }
  CHECK(n_refused == 50);
  std::vector<int64_t> took;
  for (int i = 0; i < 30; ++i) {
    for (const char* path : {"/health", "/ready", "/metrics"}) {
      int64_t begin = monotonic_us();
      REQUIRE(fetch(port, get(path)).status == 200);
      took.push_back((monotonic_us() - begin) / 1000);
    }
  }
  std::sort(took.begin(), took.end());
  INFO("median " << took[took.size() / 2] << " ms, slowest " << took.back() << " ms");
  CHECK(took[took.size() / 2] <= 100);
  CHECK(took.back() <= 1000);  // the bound is 100 ms; this machine may be busy with other builds
  streams.clear();
  CHECK(f.service.wait_cancelled(256, 20000) == 256);
  CHECK(eventually([&] { return fetch(port, post("/v1/completions", R"({"prompt":"a","max_tokens":1})"), 200).status != 503; }));
}

TEST_CASE("connections: slow clients beyond the limit do not starve probes") {
  ServerFixture f;
  f.config.server_max_connections = 8;
  f.service.script = [](const GenerateRequest& r) { return ApiResult<Script>(endless(r, 100)); };
  int port = f.start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawClient>(port));
    clients.back()->send(post("/v1/chat/completions", kChatStream));
  }
  REQUIRE(eventually([&] { return f.service.n_live == 8; }));
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<RawClient>(port));
    clients.back()->send("GET /health HTTP/1.1\r\n");  // never ends
  }
  for (int i = 0; i < 10; ++i) CHECK(fetch(port, get("/health"), 5000).status == 200);
}

TEST_CASE("connections: kept-alive ones are reused under load without a reset") {
  ServerFixture f;
  int port = f.start();
  std::atomic<int> n_ok{0}, n_bad{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 24; ++t) {
    threads.emplace_back([&, t] {
      RawClient client(port);
      for (int i = 0; i < 200; ++i) {
        int kind = (t + i) % 4;
        std::string request = kind == 0   ? post("/v1/completions", R"({"prompt":"a"})")
                              : kind == 1 ? post("/v1/chat/completions", kChatStream)
                              : kind == 2 ? post("/v1/completions", R"({"prompt":"a","model":"other"})")  // 404
                                          : get("/v1/models");
        bool sent = client.send(request);
        RawReply reply = client.read_reply(30000);
        (sent && reply.is_complete && reply.status == (kind == 2 ? 404 : 200) ? n_ok : n_bad) += 1;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(n_ok == 24 * 200);
  CHECK(n_bad == 0);
}

TEST_CASE("connections: a client that leaves cancels its request (C-20)") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest& r) -> ApiResult<Script> {
    if (r.endpoint == "completions") return Script{};  // silent: waits in the queue
    return endless(r, 20);
  };
  int port = f.start();
  int n = 0;
  for (bool is_stream : {true, false}) {
    for (bool is_silent : {true, false}) {
      for (int way = 0; way < 3; ++way) {
        INFO("stream " << is_stream << " silent " << is_silent << " way " << way);
        RawClient client(port);
        std::string body = is_silent ? R"({"prompt":"a")" : R"({"messages":[{"role":"user","content":"a"}])";
        client.send(post(is_silent ? "/v1/completions" : "/v1/chat/completions", body + (is_stream ? ",\"stream\":true}" : "}")));
        if (is_stream && !is_silent) client.read_until("word ");
        REQUIRE(eventually([&] { return f.service.n_live == 1; }));
        int64_t begin = monotonic_us();
        if (way == 0) client.close();
        if (way == 1) client.reset();
        if (way == 2) client.shutdown_write();
        ++n;
        REQUIRE(f.service.wait_cancelled(n, 10000) == n);
        CHECK(monotonic_us() - begin < 2'000'000);  // about 50 ms on an idle machine
        REQUIRE(eventually([&] { return f.service.n_live == 0; }));
      }
    }
  }
}

TEST_CASE("connections: a client that leaves while its prompt waits for a worker") {
  ServerFixture f;
  std::atomic<bool> is_waiting{false};
  f.service.prepare_wait = [&](const CallLimits& limits) {
    is_waiting = true;
    while (!limits.is_client_gone() && monotonic_us() < limits.deadline_us)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  int port = f.start();
  RawClient client(port);
  client.send(post("/v1/completions", R"({"prompt":"a"})"));
  REQUIRE(eventually([&] { return is_waiting.load(); }));
  client.close();
  REQUIRE(eventually([&] { return f.service.rejected().size() == 1; }));
  CHECK(f.service.rejected()[0].status == "cancelled");
  CHECK(f.service.n_submitted == 0);
}

TEST_CASE("connections: a slow reader is cut, others go on (C-24)") {
  ServerFixture f;
  f.config.server_slow_reader_timeout_ms = 500;
  const std::string big(4000, 'x');
  f.service.script = [&](const GenerateRequest& r) -> ApiResult<Script> {
    if (r.endpoint == "chat") return endless(r, 0, big);
    return words_script(r, {"a"});
  };
  int port = f.start();
  RawClient slow(port, 4096);
  slow.send(post("/v1/chat/completions", kChatStream));
  REQUIRE(eventually([&] { return f.service.n_live == 1; }));
  for (int i = 0; i < 5; ++i) CHECK(fetch(port, post("/v1/completions", R"({"prompt":"a"})")).status == 200);
  CHECK(f.service.wait_cancelled(1, 20000) == 1);
  RawReply got = slow.read_reply(5000);  // a clean prefix, never an end mark
  CHECK(got.status == 200);
  CHECK(!got.is_complete);
  CHECK(got.body.find("[DONE]") == std::string::npos);
  CHECK(got.body.size() < (4u << 20));
}

TEST_CASE("connections: stop ends streams with an error event and joins") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest& r) { return ApiResult<Script>(endless(r, 20)); };
  int port = f.start();
  RawClient client(port), idle(port);
  client.send(post("/v1/chat/completions", kChatStream));
  client.read_until("word ");
  std::thread stopper([&] { f.server->stop(); });
  RawReply reply = client.read_reply();
  stopper.join();
  CHECK(reply.body.find("[DONE]") == std::string::npos);
  CHECK(str(json(sse_events(reply.body).back()), "error", "code") == "aborted");
  CHECK(idle.is_closed(5000));
  CHECK(RawClient(port).send("x") == false);
  f.server->stop();  // again: nothing happens
}

}  // namespace tandem::api
