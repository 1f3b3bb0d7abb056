// What AVX-512 VNNI reaches on this machine: dot products in registers, and plain reading.
#include <immintrin.h>

#include "kernels/columns.h"

namespace tandem::avx512vnni {

int64_t peak_int8(int64_t iterations, int32_t* sink) {
  constexpr int kChains = 12;  // more than latency times throughput of every known implementation
  __m512i acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_epi32(i);
  const __m512i a = _mm512_set1_epi8(3);
  __m512i b = _mm512_set1_epi8(1);
  for (int64_t n = 0; n < iterations; ++n) {
    asm volatile("" : "+v"(b));  // keeps the loop from being computed in one step
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = _mm512_xor_si512(acc[0], acc[i]);
  *sink = _mm512_reduce_add_epi32(acc[0]);
  return iterations * kChains * 64 * 2;
}

uint64_t peak_read(const uint8_t* data, size_t bytes) {
  __m512i acc[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                    _mm512_setzero_si512()};
  size_t at = 0;
  for (; at + 256 <= bytes; at += 256) {
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {
      acc[i] = _mm512_xor_si512(acc[i], _mm512_load_si512(data + at + 64 * i));
    }
  }
  for (; at < bytes; at += 64) acc[0] = _mm512_xor_si512(acc[0], _mm512_load_si512(data + at));
  const __m512i all =
      _mm512_xor_si512(_mm512_xor_si512(acc[0], acc[1]), _mm512_xor_si512(acc[2], acc[3]));
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(all));
}

}  // namespace tandem::avx512vnni
