// What AVX-VNNI reaches on this machine: int8 dot products in registers.
#include <immintrin.h>

#include "kernels/columns.h"

namespace tandem::avxvnni {

int64_t peak_int8(int64_t iterations, int32_t* sink) {
  constexpr int kChains = 12;  // more than latency times throughput of every known implementation
  __m256i acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm256_set1_epi32(i);
  const __m256i a = _mm256_set1_epi8(3);
  __m256i b = _mm256_set1_epi8(1);
  for (int64_t n = 0; n < iterations; ++n) {
    asm volatile("" : "+x"(b));  // keeps the loop from being computed in one step
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = _mm256_dpbusd_avx_epi32(acc[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = _mm256_xor_si256(acc[0], acc[i]);
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), acc[0]);
  *sink = 0;
  for (int32_t lane : lanes) *sink ^= lane;
  return iterations * kChains * 32 * 2;
}

}  // namespace tandem::avxvnni
