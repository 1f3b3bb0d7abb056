// Vector exp and tanh for the AVX-512 column. Internal linkage; included by its .cc files alone.
#pragma once

#include <immintrin.h>

namespace tandem {
namespace {

// e^x, relative error below 2^-22 over the normal range (the ops' tests check it); exp(0) is exactly 1;
// below -104 it is 0, above 88.73 infinity; NaN stays NaN. Range reduction by ln 2 in two parts and the
// Cephes expf polynomial.
static inline __attribute__((always_inline)) __m512 exp512(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);  // the second operand wins for NaN
  x = _mm512_min_ps(_mm512_set1_ps(100.0f), x);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r);
  return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1.0f)), n);
}

// tanh x = 1 - 2 / (e^2x + 1): absolute error below 2^-21.
static inline __attribute__((always_inline)) __m512 tanh512(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
  const __m512 e = exp512(_mm512_mul_ps(two, x));
  return _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(e, one)));
}

static inline __attribute__((always_inline)) __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1);
}

}  // namespace
}  // namespace tandem
