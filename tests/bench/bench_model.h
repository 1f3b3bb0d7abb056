// What the benchmarks of whole forward passes share: a backend over a model file, as a worker opens it.
#pragma once

#include <memory>

#include "model/backend.h"

namespace tandem {

constexpr int kBenchPageSize = 16;

// n_threads 0: all usable cores. Reserves n_pages pages a KV group and prints what was opened. Exits on errors.
std::unique_ptr<Backend> open_bench_backend(const char* path, int n_threads, bool float_activations, int n_pages,
                                            bool has_lean_set = true);

}  // namespace tandem
