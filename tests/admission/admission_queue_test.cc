#include "admission/admission_queue.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "admission/dispatch_gate.h"
#include "admission/retry_after.h"

using namespace tandem;
using ipc::Priority;

namespace {

constexpr int64_t kMs = 1000;
const auto kAny = [](uint64_t) { return true; };

struct Fixture {
  FakeClock clock;
  AdmissionQueue queue;
  explicit Fixture(size_t max_queue = 256, int64_t ageing_us = 5'000 * kMs)
      : queue({max_queue, ageing_us}, &clock) {
    clock.set_us(1'000'000);
  }
  Offer offer(uint64_t id, Priority p = Priority::kNormal, const std::string& client = "",
              int64_t deadline = 0) {
    return queue.offer({id, p, client, clock.now_us(), deadline});
  }
  uint64_t pop() {
    auto id = queue.next(kAny);
    if (!id) return 0;
    queue.take(*id);
    return *id;
  }
};

}  // namespace

TEST_CASE("strict classes, oldest first inside one") {
  Fixture f;
  f.offer(1, Priority::kLow), f.offer(2, Priority::kNormal), f.offer(3, Priority::kHigh);
  f.clock.advance_us(kMs);
  f.offer(4, Priority::kHigh), f.offer(5, Priority::kNormal);
  for (uint64_t want : {3, 4, 2, 5, 1, 0}) CHECK(f.pop() == want);
}

TEST_CASE("waiting lifts by one class per period, and every fourth turn is for those it lifted") {
  Fixture f;
  f.offer(1, Priority::kLow), f.offer(2, Priority::kLow);
  f.clock.advance_us(5'000 * kMs - 1);
  for (uint64_t id = 11; id <= 16; ++id) f.offer(id, Priority::kNormal);
  for (uint64_t id : {11, 12, 13}) CHECK(f.pop() == id);
  CHECK(*f.queue.next(kAny) == 14);  // still low
  f.clock.advance_us(1);
  for (uint64_t id : {1, 14, 15, 16, 2}) CHECK(f.pop() == id);  // normal by now, and it is their turn
  f.offer(3, Priority::kLow);
  f.clock.advance_us(9'000 * kMs);
  for (uint64_t id = 21; id <= 28; ++id) f.offer(id, Priority::kHigh);
  for (uint64_t id : {21, 22, 23, 24}) CHECK(f.pop() == id);  // normal is not high
  f.clock.advance_us(1'000 * kMs);
  for (uint64_t id : {3, 25, 26, 27, 28}) CHECK(f.pop() == id);
}

TEST_CASE("time at a worker is not waiting; earlier waits count") {
  Fixture f;
  f.offer(1, Priority::kLow);
  f.clock.advance_us(4'000 * kMs);
  WaitingRequest r = f.queue.take(1);
  CHECK(r.waited_us == 4'000 * kMs);
  f.clock.advance_us(60'000 * kMs);
  CHECK(r.enqueued_us == 1'000'000);
  r.since_us = f.clock.now_us();
  f.queue.requeue(r);
  CHECK(f.queue.effective_class(r) == 2);
  f.clock.advance_us(1'000 * kMs);
  CHECK(f.queue.effective_class(r) == 1);
  CHECK(f.queue.waiting_us(1) == 1'000 * kMs);
}

TEST_CASE("keys take turns inside a class") {
  Fixture f;
  for (uint64_t i = 1; i <= 4; ++i) f.offer(i, Priority::kNormal, "bulk");
  f.clock.advance_us(kMs);
  f.offer(11, Priority::kNormal, "alice"), f.offer(12, Priority::kNormal, "alice");
  f.clock.advance_us(kMs);
  f.offer(21, Priority::kNormal, "bob");
  for (uint64_t want : {1, 11, 21, 2, 12, 3, 4}) CHECK(f.pop() == want);
  // A share used in one class doesn't count in another.
  f.offer(5, Priority::kLow, "bulk"), f.offer(31, Priority::kLow, "alice");
  CHECK(f.pop() == 5);
}

TEST_CASE("keys share tokens: long answers do not take the places of short ones") {
  Fixture f;
  uint64_t next_id = 1;
  std::map<uint64_t, std::string> client_of;
  std::map<std::string, int64_t> had, turns;
  const std::map<std::string, int64_t> answer = {{"long", 1024}, {"short", 8}, {"middle", 100}};
  auto offer = [&](const std::string& client) {
    client_of[next_id] = client;
    f.queue.offer({next_id++, Priority::kNormal, client, f.clock.now_us(), 0, 0, -1, 16});
  };
  for (const auto& [client, n] : answer) offer(client), offer(client);
  for (int i = 0; i < 2000; ++i) {
    f.clock.advance_us(kMs);
    const std::string client = client_of.at(f.pop());
    f.queue.charge(client, Priority::kNormal, answer.at(client));
    had[client] += 16 + answer.at(client);
    ++turns[client];
    offer(client);
  }
  CHECK(std::abs(had["long"] - had["short"]) <= 1040);
  CHECK(std::abs(had["long"] - had["middle"]) <= 1040);
  CHECK(turns["short"] > 40 * turns["long"]);
  // Who was away comes back among equals: neither first until it has caught up, nor last.
  for (int i = 0; i < 4; ++i) offer("new");
  int of_new = 0;
  for (int i = 0; i < 400; ++i) {
    const std::string client = client_of.at(f.pop());
    f.queue.charge(client, Priority::kNormal, client == "new" ? 8 : answer.at(client));
    of_new += client == "new";
    offer(client);
  }
  CHECK(of_new > 50);
  CHECK(of_new < 300);
}

TEST_CASE("a request that comes back is not counted twice") {
  Fixture f;
  auto request = [&](uint64_t id, const std::string& client) {
    return WaitingRequest{id, Priority::kNormal, client, f.clock.now_us(), 0, 0, -1, 100};
  };
  f.queue.offer(request(1, "a")), f.queue.offer(request(2, "b"));
  CHECK(f.pop() == 1);
  f.clock.advance_us(kMs);
  f.queue.requeue(request(1, "a"));
  CHECK(f.pop() == 2);
  CHECK(f.pop() == 1);
  f.clock.advance_us(kMs);
  f.queue.offer(request(3, "b")), f.queue.offer(request(4, "a"));
  CHECK(f.pop() == 3);  // 100 tokens each; b's turn is longer ago
}

TEST_CASE("displacement takes the youngest of the lowest class below the arrival's") {
  Fixture f(3);
  f.offer(1, Priority::kLow);
  f.clock.advance_us(kMs);
  f.offer(2, Priority::kLow), f.offer(3, Priority::kNormal);
  Offer low = f.offer(4, Priority::kLow);
  CHECK(!low.is_accepted);
  CHECK(!low.displaced);
  Offer normal = f.offer(5, Priority::kNormal);
  CHECK(normal.is_accepted);
  CHECK(*normal.displaced == 2);
  CHECK(*f.offer(6, Priority::kHigh).displaced == 1);
  CHECK(*f.offer(7, Priority::kHigh).displaced == 5);
  CHECK(*f.offer(8, Priority::kHigh).displaced == 3);
  CHECK(!f.offer(9, Priority::kHigh).is_accepted);
  CHECK(f.queue.size() == 3);
}

TEST_CASE("what comes back from a dead worker is neither refused nor displaced nor counted") {
  Fixture f(1);
  f.queue.requeue({1, Priority::kLow, "", 1, 0});
  f.queue.requeue({2, Priority::kLow, "", 2, 0});
  CHECK(f.offer(3, Priority::kLow).is_accepted);
  CHECK(*f.offer(4, Priority::kHigh).displaced == 3);
  CHECK(!f.offer(5, Priority::kHigh).is_accepted);
  CHECK(f.queue.size() == 3);
  CHECK(f.queue.waiting(Priority::kLow) == 2);
}

TEST_CASE("next leaves those it may not run in their place") {
  Fixture f;
  f.offer(1), f.offer(2), f.offer(3);
  CHECK(*f.queue.next([](uint64_t id) { return id != 1; }) == 2);
  CHECK(!f.queue.next([](uint64_t) { return false; }));
  CHECK(*f.queue.next(kAny) == 1);
}

TEST_CASE("deadlines") {
  Fixture f;
  int64_t now = f.clock.now_us();
  f.offer(1, Priority::kHigh, "", now + 10), f.offer(2, Priority::kLow, "", now + 5), f.offer(3);
  CHECK(*f.queue.next_deadline_us() == now + 5);
  CHECK(f.queue.take_expired().empty());
  f.clock.advance_us(5);
  CHECK(f.queue.take_expired() == std::vector<uint64_t>{2});
  CHECK(f.queue.remove(1));
  CHECK(!f.queue.remove(1));
  CHECK(!f.queue.next_deadline_us());
  CHECK(f.queue.size() == 1);
}

// Random arrivals, dispatches, cancels, deadlines and requeues: every request leaves exactly once,
// the bound holds, a dispatch is never overtaken by a lower class, and nobody starves.
TEST_CASE("property: everyone leaves once, in order, in bounded time") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    Fixture f(32, 50 * kMs);
    std::map<uint64_t, WaitingRequest> waiting;
    std::set<uint64_t> requeued;
    uint64_t next_id = 1;
    int64_t longest_wait = 0, n_turns = 10, last_passing = 0;
    for (int step = 0; step < 4000; ++step) {
      f.clock.advance_us(pick(3) * kMs);
      int64_t now = f.clock.now_us();
      for (uint64_t id : f.queue.take_expired()) {
        REQUIRE(waiting.at(id).deadline_us <= now);
        waiting.erase(id), requeued.erase(id);
      }
      for (const auto& [id, w] : waiting) REQUIRE((w.deadline_us == 0 || w.deadline_us > now));
      int what = pick(10);
      if (what < 5) {
        WaitingRequest w{next_id++, static_cast<Priority>(pick(3)),
                         std::string(1, static_cast<char>('a' + pick(4))), now,
                         pick(4) == 0 ? now + pick(400) * kMs + 1 : 0};
        bool is_full = waiting.size() - requeued.size() >= 32;
        Offer offer = f.queue.offer(w);
        if (!is_full) REQUIRE((offer.is_accepted && !offer.displaced));
        if (offer.displaced) {
          REQUIRE(requeued.count(*offer.displaced) == 0);
          REQUIRE(waiting.at(*offer.displaced).priority > w.priority);
          waiting.erase(*offer.displaced);
        }
        if (offer.is_accepted) waiting[w.id] = w;
        REQUIRE(waiting.size() - requeued.size() <= 32);
      } else if (what < 8) {
        auto id = f.queue.next(kAny);
        REQUIRE(id.has_value() == !waiting.empty());
        if (!id) continue;
        f.queue.take(*id);
        WaitingRequest w = waiting.at(*id);
        // A lower class goes first only when lifted to the higher, and in every fourth turn.
        int highest = 2;
        for (const auto& [other, o] : waiting) highest = std::min(highest, static_cast<int>(o.priority));
        bool passes = static_cast<int>(w.priority) > highest;
        int64_t reached = static_cast<int>(w.priority) - (now - w.enqueued_us) / (50 * kMs);
        if (passes) REQUIRE((reached <= highest && n_turns - last_passing >= AdmissionQueue::kAgedTurn));
        ++n_turns;
        if (passes) last_passing = n_turns - 1;
        longest_wait = std::max(longest_wait, now - w.enqueued_us);
        waiting.erase(*id), requeued.erase(*id);
        if (pick(10) == 0) {
          w.enqueued_us = w.since_us = now - pick(20) * kMs;
          f.queue.requeue(w);
          waiting[w.id] = w, requeued.insert(w.id);
        }
      } else if (what == 8 && !waiting.empty()) {
        auto it = std::next(waiting.begin(), pick(static_cast<int>(waiting.size())));
        REQUIRE(f.queue.remove(it->first));
        requeued.erase(it->first), waiting.erase(it);
      }
      REQUIRE(f.queue.size() == waiting.size());
    }
    // Two lifts bring anyone to the top, then at most the queue itself is ahead of it, every fourth
    // turn: 0.3 dispatches a step of 1 ms.
    CHECK(longest_wait < (2 * 50 + 34 * 10 * AdmissionQueue::kAgedTurn) * kMs);
    while (f.pop() != 0) {
    }
    CHECK(f.queue.size() == 0);
  }
}

TEST_CASE("Retry-After follows the rate at which requests end while there is work") {
  FakeClock clock;
  clock.set_us(100'000'000);
  RetryAfter retry(&clock);
  CHECK(retry.estimate_s(10) == RetryAfter::kUnknownSeconds);
  retry.set_busy(true);
  for (int i = 0; i < 10; ++i) {
    retry.on_completion();
    clock.advance_us(2'000'000);
  }
  CHECK(retry.estimate_s(0) == 2);
  CHECK(retry.estimate_s(9) == 20);
  CHECK(retry.estimate_s(10'000) == RetryAfter::kMaxSeconds);
  retry.set_busy(false);
  clock.advance_us(3'600'000'000);  // a quiet hour changes nothing
  CHECK(retry.estimate_s(9) == 20);
  retry.set_busy(true);
  CHECK(retry.estimate_s(9) == 20);
  clock.advance_us(120'000'000);  // two minutes of work that end nothing do
  CHECK(retry.estimate_s(0) == RetryAfter::kMaxSeconds);
  for (int i = 0; i < 2000; ++i) {
    clock.advance_us(10'000);
    retry.on_completion();
  }
  CHECK(retry.estimate_s(499) == 5);
}

TEST_CASE("Retry-After before anything ended is at least as long as the first request runs by now") {
  FakeClock clock;
  RetryAfter retry(&clock);
  retry.set_busy(true);
  clock.advance_us(40'000'000);
  CHECK(retry.estimate_s(3) == 40);
}

// A server that ends one request in 700 ms, with a queue of 20: who comes back when told to is served at once
// if nobody else came, and is not told to wait three times too long.
TEST_CASE("Retry-After is true") {
  FakeClock clock;
  RetryAfter retry(&clock);
  std::mt19937 random(2);
  std::exponential_distribution<double> service(1 / 0.7);
  double off = 0;
  for (int round = 0; round < 50; ++round) {
    retry.set_busy(true);
    for (int i = 0; i < 60; ++i) {
      clock.advance_us(static_cast<int64_t>(service(random) * 1e6));
      retry.on_completion();
    }
    int told = retry.estimate_s(20);
    double until_served = 0;
    for (int i = 0; i < 21; ++i) until_served += service(random);
    off += told / until_served;
    retry.set_busy(false);
    clock.advance_us(static_cast<int64_t>(random() % 1000) * 1'000'000);
  }
  CHECK(off / 50 == Approx(1).margin(0.25));
}

TEST_CASE("the gate recalls the youngest of the lowest class, never in vain, never one that was lifted") {
  using Verdict = DispatchGate::Verdict;
  DispatchGate gate;
  gate.set_limit(4);
  CHECK(gate.ask(2, 9).verdict == Verdict::kDispatch);  // alone it may have more
  gate.on_dispatch(1, 2, 1), gate.on_dispatch(2, 1, 1), gate.on_dispatch(3, 2, 1);
  CHECK(gate.ask(2, 1).verdict == Verdict::kDispatch);
  gate.on_dispatch(4, 0, 1);  // low once, but it waited long
  CHECK(gate.ask(2, 1).verdict == Verdict::kWait);
  CHECK((gate.ask(1, 1).verdict == Verdict::kRecall && gate.ask(1, 1).recall == 3));
  CHECK(gate.ask(1, 3).verdict == Verdict::kWait);  // two recalls would not be enough
  CHECK(gate.ask(0, 3).recall == 3);
  gate.on_leave(3);
  CHECK(gate.ask(0, 3).recall == 1);
  gate.on_leave(1);
  CHECK(gate.ask(0, 3).recall == 2);
  gate.on_leave(2);
  CHECK(gate.ask(0, 3).verdict == Verdict::kDispatch);
  gate.on_dispatch(5, 0, 3);
  CHECK(gate.ask(0, 1).verdict == Verdict::kWait);
  gate.on_choice_end(5), gate.on_choice_end(5, 9), gate.on_choice_end(77);
  CHECK((gate.n_sequences() == 1 && gate.n_requests() == 2));
  gate.on_leave(5), gate.on_leave(5), gate.on_leave(4);
  CHECK(gate.n_sequences() == 0);
}
