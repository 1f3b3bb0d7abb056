// What AVX2 reaches on this machine: int8 dot products in registers (maddubs, and its widening
// every eighth time as the matmul does), and plain reading.
#include <immintrin.h>

#include "kernels/columns.h"

namespace tandem::avx2 {

int64_t peak_int8(int64_t iterations, int32_t* sink) {
  constexpr int kChains = 5, kSteps = 8;
  __m256i acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm256_set1_epi32(i);
  const __m256i a = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
  __m256i b = _mm256_set1_epi8(1);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 5
    for (int i = 0; i < kChains; ++i) {
      __m256i words = _mm256_setzero_si256();
#pragma GCC unroll 8
      for (int j = 0; j < kSteps; ++j) {
        asm volatile("" : "+x"(b));  // keeps equal steps from being computed once
        words = _mm256_add_epi16(words, _mm256_maddubs_epi16(a, b));
      }
      acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(words, ones));
    }
  }
  for (int i = 1; i < kChains; ++i) acc[0] = _mm256_xor_si256(acc[0], acc[i]);
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), acc[0]);
  *sink = 0;
  for (int32_t lane : lanes) *sink ^= lane;
  return iterations * kChains * kSteps * 32 * 2;
}

uint64_t peak_read(const uint8_t* data, size_t bytes) {
  __m256i acc[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (size_t at = 0; at < bytes; at += 64) {
    const auto* line = reinterpret_cast<const __m256i*>(data + at);
    acc[0] = _mm256_xor_si256(acc[0], _mm256_load_si256(line));
    acc[1] = _mm256_xor_si256(acc[1], _mm256_load_si256(line + 1));
  }
  alignas(32) uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_xor_si256(acc[0], acc[1]));
  return lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3];
}

}  // namespace tandem::avx2
