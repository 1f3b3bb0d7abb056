#include "base/clock.h"

#include <ctime>

#include <cstdio>

namespace tandem {
namespace {
int64_t read_us(clockid_t id) {
  timespec t;
  clock_gettime(id, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000 + t.tv_nsec / 1000;
}
}  // namespace

int64_t monotonic_us() { return read_us(CLOCK_MONOTONIC); }
int64_t utc_us() { return read_us(CLOCK_REALTIME); }

std::string format_utc(int64_t us) {
  int64_t seconds = us / 1'000'000, rest = us % 1'000'000;
  if (rest < 0) rest += 1'000'000, --seconds;
  time_t t = seconds;
  tm parts;
  gmtime_r(&t, &parts);
  char text[64];
  size_t n = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + n, sizeof text - n, ".%06dZ", static_cast<int>(rest));
  return text;
}

}  // namespace tandem
