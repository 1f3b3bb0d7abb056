#include "tests/bench/bench_setup.h"

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/kernels/tested_column.h"

namespace tandem {

BenchSetup bench_setup(int argc, char** argv) {
  if (argc > 1) setenv("TANDEM_FORCE_ISA", argv[1], 1);
  BenchSetup s = {};
  s.table = tested_column();
  s.n_threads = argc > 2 ? std::atoi(argv[2]) : 1;
  if (!s.table || s.n_threads < 1) {
    std::fprintf(stderr, "usage: %s [column [threads]]; the column must run on this CPU\n",
                 argv[0]);
    std::exit(2);
  }
  std::vector<int32_t> sinks(static_cast<size_t>(s.n_threads) * 16);
  int64_t ops = 0;
  const double compute = bench_seconds(s.n_threads, 0.3, [&](int i) {
    const int64_t done = s.table->peak_int8(200000, &sinks[static_cast<size_t>(i) * 16]);
    if (i == 0) ops = done;
  });
  s.int8_ops_per_s = static_cast<double>(ops) * s.n_threads / compute;
  constexpr size_t kBytes = size_t{96} << 20;  // a thread's share, past any cache of the board
  AlignedBytes memory(kBytes * static_cast<size_t>(s.n_threads));
  for (size_t i = 0; i < kBytes * static_cast<size_t>(s.n_threads); i += 4096) memory.data()[i] = 1;
  std::vector<uint64_t> sums(static_cast<size_t>(s.n_threads) * 8);
  const double reading = bench_seconds(s.n_threads, 0.3, [&](int i) {
    sums[static_cast<size_t>(i) * 8] =
        s.table->peak_read(memory.data() + kBytes * static_cast<size_t>(i), kBytes);
  });
  s.read_bytes_per_s = static_cast<double>(kBytes) * s.n_threads / reading;
  std::printf("column %s, %d threads: int8 peak %.0f GOPS, read bandwidth %.1f GB/s\n",
              s.table->isa, s.n_threads, s.int8_ops_per_s / 1e9, s.read_bytes_per_s / 1e9);
  return s;
}

// The processor time of the slowest thread, not the clock: a neighbour that takes turns on a core
// then costs a run its caches, but not its figure.
double bench_seconds(int n_threads, double min_seconds, const std::function<void(int)>& work) {
  const auto cpu_seconds = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  std::vector<double> rounds, spent(static_cast<size_t>(n_threads));
  bool done = false;
  double total = 0;
  std::barrier<> gate(n_threads);
  const auto body = [&](int i) {
    while (!done) {
      gate.arrive_and_wait();
      const double start = cpu_seconds();
      work(i);
      spent[static_cast<size_t>(i)] = cpu_seconds() - start;
      gate.arrive_and_wait();
      if (i == 0) {
        rounds.push_back(*std::max_element(spent.begin(), spent.end()));
        total += rounds.back();
        done = total >= min_seconds && rounds.size() >= 5;
      }
      gate.arrive_and_wait();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < n_threads; ++i) threads.emplace_back(body, i);
  body(0);
  for (std::thread& t : threads) t.join();
  std::nth_element(rounds.begin(), rounds.begin() + static_cast<long>(rounds.size() / 2),
                   rounds.end());
  return rounds[rounds.size() / 2];
}

}  // namespace tandem
