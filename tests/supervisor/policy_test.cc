// The supervisor's rules without processes: restarts, quarantine, how an end is judged, the
// stream's buffer.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <set>

#include "base/clock.h"
#include "supervisor/quarantine.h"
#include "supervisor/response_buffer.h"
#include "supervisor/restart_policy.h"
#include "supervisor/worker_process.h"

using namespace tandem;

TEST_CASE("restart: first at once, then 0.2 s doubling to 30 s, only without progress") {
  RestartPolicy policy;
  std::vector<int64_t> delays;
  for (int i = 0; i < 12; ++i) delays.push_back(policy.on_end(false) / 1000);
  CHECK(delays == std::vector<int64_t>{0, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000,
                                       30000, 30000});
  CHECK(policy.on_end(true) == 0);
  for (int i = 0; i < 10; ++i) CHECK(policy.on_end(true) == 0);
  CHECK(policy.on_end(false) == 0);
  CHECK(policy.on_end(false) == 200'000);
}

TEST_CASE("an end by a worker's own fault is told from one by others") {
  auto end_of = [](const std::function<void()>& die) {
    pid_t pid = fork();
    if (pid == 0) {
      die();
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return classify_end(status);
  };
  for (int sig : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
    WorkerEnd end = end_of([&] { signal(sig, SIG_DFL), raise(sig); });
    CHECK(end.cause == "crash");
    CHECK(end.is_own_fault);
  }
  for (int sig : {SIGKILL, SIGTERM}) {
    WorkerEnd end = end_of([&] { signal(sig, SIG_DFL), raise(sig); });
    CHECK(end.cause == "killed");
    CHECK(!end.is_own_fault);
  }
  std::vector<std::pair<int, std::string>> codes = {
      {0, "exit"}, {1, "exit"}, {70, "internal"}, {75, "device"}, {78, "config"}};
  for (const auto& [code, cause] : codes) {
    WorkerEnd end = end_of([c = code] { _exit(c); });
    CHECK(end.cause == cause);
    CHECK(end.is_own_fault == (code == 70));
  }
}

TEST_CASE("quarantine: two charges make a suspect, alone and charged again it is convicted") {
  Quarantine q;
  for (int crash = 0; crash < 2; ++crash) {
    for (uint64_t i : {1, 2, 3}) {
      CHECK(q.may_dispatch(i));
      q.on_dispatch(i);
    }
    CHECK(q.on_worker_end(true).empty());
  }
  q.on_dispatch(1);
  CHECK(!q.may_dispatch(2));  // another suspect
  CHECK(!q.may_dispatch(9));  // and nobody joins the one on trial
  q.on_progress(1, true);
  CHECK(q.may_dispatch(9));
  CHECK(q.may_dispatch(2));
  q.on_dispatch(2);
  CHECK(!q.may_dispatch(3));
  CHECK(q.on_worker_end(true) == std::vector<uint64_t>{2});
  q.on_end(2);
  CHECK(q.may_dispatch(3));
  q.on_dispatch(3);
  q.on_progress(3, true);
  CHECK(q.on_worker_end(true).empty());
}

TEST_CASE("quarantine: others' faults and crashes after progress don't count") {
  Quarantine q;
  for (int i = 0; i < 50; ++i) {
    q.on_dispatch(1);
    CHECK(q.on_worker_end(false).empty());
  }
  for (int i = 0; i < 50; ++i) {
    q.on_dispatch(1);
    q.on_progress(1, true);
    CHECK(q.on_worker_end(true).empty());
  }
  CHECK(q.may_dispatch(1));
  q.on_dispatch(2);
  CHECK(q.may_dispatch(1));
}

TEST_CASE("quarantine: one that dies at the same place for ever is convicted in the end") {
  Quarantine q;
  int crashes = 0;
  q.on_dispatch(1);
  q.on_progress(1, true);
  while (q.on_worker_end(true).empty() && ++crashes < 20) {
    q.on_dispatch(1);
    q.on_progress(1, false);  // its replayed prefix
  }
  CHECK(crashes == 1 + Quarantine::kStallsForCharge);
}

TEST_CASE("quarantine property: one poison among many is found, no other is convicted") {
  for (uint64_t n = 1; n <= 16; ++n) {
    Quarantine q;
    std::set<uint64_t> left;
    for (uint64_t i = 1; i <= n; ++i) left.insert(i);
    uint64_t poison = (n + 1) / 2;
    std::vector<uint64_t> convicted;
    for (int round = 0; round < 100 && convicted.empty(); ++round) {
      for (uint64_t i : left) {
        if (q.may_dispatch(i)) q.on_dispatch(i);
      }
      convicted = q.on_worker_end(true);
      // A suspect on trial that isn't the poison would have made progress instead of crashing.
      if (!convicted.empty() && convicted[0] != poison) {
        q.on_dispatch(convicted[0]);
        q.on_progress(convicted[0], true);
        q.on_end(convicted[0]);
        left.erase(convicted[0]);
        convicted.clear();
      }
    }
    CHECK(convicted == std::vector<uint64_t>{poison});
  }
}

namespace {
api::StreamEvent text_event(size_t bytes) {
  api::StreamEvent e;
  e.kind = api::StreamEvent::Kind::kText;
  e.text.assign(bytes, 'x');
  return e;
}
}  // namespace

TEST_CASE("buffer: joined while nobody reads, bounded, cut cleanly") {
  ResponseBuffer buffer(true);
  CHECK(buffer.stalled_us(monotonic_us()) == 0);
  size_t taken = 0;
  while (buffer.push(text_event(1000))) taken += 1000;
  CHECK(taken <= ResponseBuffer::kMaxBytes);
  CHECK(taken > ResponseBuffer::kMaxBytes / 2);
  CHECK(buffer.stalled_us(monotonic_us() + 5000) >= 5000);
  api::StreamEvent all = buffer.next(std::chrono::milliseconds(0));
  CHECK(all.text.size() == taken);
  CHECK(buffer.next(std::chrono::milliseconds(1)).kind == api::StreamEvent::Kind::kIdle);
  CHECK(buffer.push(text_event(10)));
  buffer.cut(api::api_error("client_gone", "slow"));
  CHECK(buffer.next(std::chrono::milliseconds(0)).kind == api::StreamEvent::Kind::kError);
  CHECK(buffer.has_ended());
}

TEST_CASE("buffer: a plain reply is never cut, it is collected anyway") {
  ResponseBuffer buffer(false);
  for (int i = 0; i < 2000; ++i) CHECK(buffer.push(text_event(1000)));
  CHECK(buffer.stalled_us(monotonic_us() + 1'000'000'000) == 0);
}
