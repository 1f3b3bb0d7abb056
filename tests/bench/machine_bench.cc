// What this machine can do at most on N threads: plain reading of memory, int8 dot products and BF16
// dot products in registers. One JSON object, for the benchmarks that print shares.
//   machine_bench [column [threads]]
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cstdio>
#include <vector>

#include "tests/bench/bench_setup.h"

using namespace tandem;

namespace {

#ifdef __x86_64__
// Multiply-adds count two operations.
__attribute__((target("avx512f,avx512bf16"))) int64_t bf16_dots(int64_t iterations, float* sink) {
  constexpr int kChains = 12;  // more than latency times throughput of every known implementation
  __m512 acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh a = _mm512_cvtne2ps_pbh(acc[1], acc[2]);
  __m512bh b = a;
  for (int64_t n = 0; n < iterations; ++n) {
    asm volatile("" : "+v"(b));  // keeps the loop from being computed in one step
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  *sink = _mm512_cvtss_f32(acc[0]);
  return iterations * kChains * 32 * 2;
}

// 0 on a CPU without the instruction.
double bf16_ops_per_s(int n_threads) {
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
  std::vector<float> sinks(static_cast<size_t>(n_threads) * 16);
  int64_t ops = 0;
  const double seconds = bench_seconds(n_threads, 0.3, [&](int i) {
    const int64_t done = bf16_dots(200000, &sinks[static_cast<size_t>(i) * 16]);
    if (i == 0) ops = done;
  });
  return static_cast<double>(ops) * n_threads / seconds;
}
#else
double bf16_ops_per_s(int) { return 0; }
#endif

}  // namespace

int main(int argc, char** argv) {
  const BenchSetup s = bench_setup(argc, argv);
  std::printf(
      "{\"threads\":%d,\"read_bytes_per_s\":%.0f,\"int8_ops_per_s\":%.0f,\"bf16_ops_per_s\":%.0f}\n",
      s.n_threads, s.read_bytes_per_s, s.int8_ops_per_s, bf16_ops_per_s(s.n_threads));
}
