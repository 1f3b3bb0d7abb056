// What the op benchmarks share: the column and threads asked for, and medians of timed runs on all
// threads.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/kernel_table.h"

namespace tandem {

struct BenchSetup {
  const KernelTable* table;
  int n_threads;
  double int8_ops_per_s;    // measured on all threads
  double read_bytes_per_s;  // measured on all threads, from memory
};

// argv: [column [threads]]; the default is the best column and one thread. Exits on bad arguments.
BenchSetup bench_setup(int argc, char** argv);

// Median processor seconds of the slowest thread of a round in which every thread i runs work(i);
// at least `min_seconds` in all.
double bench_seconds(int n_threads, double min_seconds, const std::function<void(int)>& work);

}  // namespace tandem
