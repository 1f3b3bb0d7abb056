// Time. Durations and deadlines use monotonic_us(); only rows and log lines use utc_us(). Code with policy
// takes a Clock so that tests drive it.
#pragma once

#include <cstdint>
#include <string>

namespace tandem {

int64_t monotonic_us();  // CLOCK_MONOTONIC, microseconds
int64_t utc_us();        // microseconds since 1970-01-01 UTC
std::string format_utc(int64_t utc_us);  // "2026-11-29T12:34:56.789012Z"

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_us() const { return monotonic_us(); }
};

class FakeClock : public Clock {
 public:
  int64_t now_us() const override { return now_; }
  void advance_us(int64_t delta) { now_ += delta; }
  void set_us(int64_t now) { now_ = now; }

 private:
  int64_t now_ = 0;
};

}  // namespace tandem
