#include "worker/machine_peak.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "cpu/omp_team.h"

namespace tandem {

namespace {

constexpr int kRounds = 5;
constexpr size_t kReadBytes = size_t{256}
                              << 20;  // in all; far past the last-level cache of the boxes we serve
constexpr size_t kAlign = 64;
constexpr int64_t kTargetUs = 50000;

struct Free {
  void operator()(uint8_t* p) const { std::free(p); }
};

// Best operations or bytes a second of `work(thread) -> amount`, run by all threads at once.
template <typename Work>
double best_rate(OmpTeam* team, Work work) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<int64_t> amount{0};
    const int64_t start = monotonic_us();
    team->run([&](TeamMember& t) { amount += work(t.index()); });
    const int64_t us = std::max<int64_t>(1, monotonic_us() - start);
    best = std::max(best, static_cast<double>(amount.load()) * 1e6 / static_cast<double>(us));
  }
  return best;
}

double measure_read(const KernelTable& kernels, OmpTeam* team) {
  const size_t share = kReadBytes / static_cast<size_t>(team->n_threads()) / kAlign * kAlign;
  const std::unique_ptr<uint8_t, Free> data(static_cast<uint8_t*>(
      std::aligned_alloc(kAlign, share * static_cast<size_t>(team->n_threads()))));
  if (!data) return 0;
  std::atomic<uint64_t> sink{0};
  const auto part = [&](int thread) { return data.get() + static_cast<size_t>(thread) * share; };
  team->run([&](TeamMember& t) {
    std::memset(part(t.index()), t.index() + 1, share);
  });  // also places the pages
  return best_rate(team, [&](int thread) {
    sink += kernels.peak_read(part(thread), share);
    return static_cast<int64_t>(share);
  });
}

double measure_int8(const KernelTable& kernels, OmpTeam* team) {
  int32_t sink = 0;
  int64_t iterations = 1000;
  for (;;) {  // rounds that last long enough to be timed
    const int64_t start = monotonic_us();
    kernels.peak_int8(iterations, &sink);
    if (monotonic_us() - start >= kTargetUs / 4 || iterations > (int64_t{1} << 40)) break;
    iterations *= 2;
  }
  std::atomic<int64_t> sinks{0};
  return best_rate(team, [&](int) {
    int32_t own = 0;
    const int64_t ops = kernels.peak_int8(iterations * 4, &own);
    sinks += own;
    return ops;
  });
}

}  // namespace

MachinePeak measure_machine(const KernelTable& kernels, int n_threads) {
  OmpTeam team(n_threads);
  return {measure_read(kernels, &team), measure_int8(kernels, &team)};
}

}  // namespace tandem
