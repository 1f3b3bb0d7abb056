// The rung `batch` over time: steps down and up, bounds, and that no rhythm of calls makes it faster.
#include "admission/batch_limit.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

using namespace tandem;

TEST_CASE("batch limit: a quarter less each second, never below a quarter; back in 12 seconds") {
  BatchLimit limit;
  CHECK(!limit.is_limiting());
  CHECK(limit.apply(32) == 32);
  std::vector<size_t> down, up;
  int64_t now = 0;
  for (int s = 0; s < 7; ++s) limit.turn(true, now += 1'000'000), down.push_back(limit.apply(32));
  CHECK(down == std::vector<size_t>{24, 18, 13, 10, 8, 8, 8});
  CHECK(limit.is_limiting());
  for (int s = 0; s < 12; ++s) limit.turn(false, now += 1'000'000), up.push_back(limit.apply(32));
  CHECK(up == std::vector<size_t>{12, 12, 16, 16, 20, 20, 24, 24, 28, 28, 32, 32});
  CHECK(!limit.is_limiting());
}

TEST_CASE("batch limit: small batches keep one place") {
  BatchLimit limit;
  for (int64_t s = 1; s <= 10; ++s) limit.turn(true, s * 1'000'000);
  CHECK(limit.apply(1) == 1);
  CHECK(limit.apply(2) == 1);
  CHECK(limit.apply(4) == 1);
  CHECK(limit.apply(8) == 2);
}

TEST_CASE("batch limit: neither often called nor on and off does it step more than once a second, and it ends where it began") {
  std::mt19937 rng(3);
  for (int round = 0; round < 200; ++round) {
    BatchLimit limit;
    int64_t now = 0, changed = INT64_MIN / 2;
    size_t before = limit.apply(64);
    for (int i = 0; i < 500; ++i) {
      now += std::uniform_int_distribution<int64_t>(0, 400'000)(rng);
      limit.turn(rng() % 2 == 0, now);
      const size_t places = limit.apply(64);
      REQUIRE(places >= 16);
      REQUIRE(places <= 64);
      if (places == before) continue;
      REQUIRE(now - changed >= 900'000);
      changed = now, before = places;
    }
    for (int s = 0; s < 13; ++s) limit.turn(false, now += 1'000'000);
    REQUIRE(!limit.is_limiting());
  }
}
