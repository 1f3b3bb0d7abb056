// three_pass.h in the words of a simd_<isa>.h, which is included before this file. T a multiple of 4.
#pragma once

#include <math.h>

#include "kernels/simd_math.h"
#include "tests/bench/three_pass.h"

namespace tandem {
namespace {
namespace three_pass {

using simd::kLanes;
using simd::Vec;
constexpr int kRows = 4, kColumns = simd::kWide * kLanes;

// c[4][kColumns] = a[4][n] * b[n][kColumns].
TANDEM_SIMD void product(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t n,
                         float* c, int64_t ldc) {
  Vec acc[kRows][simd::kWide];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < simd::kWide; ++j) acc[r][j] = simd::zero();
  }
  for (int64_t i = 0; i < n; ++i) {
    Vec x[simd::kWide];
#pragma GCC unroll 4
    for (int j = 0; j < simd::kWide; ++j) x[j] = simd::load(b + i * ldb + j * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec w = simd::splat(a[r * lda + i]);
#pragma GCC unroll 4
      for (int j = 0; j < simd::kWide; ++j) acc[r][j] = simd::fma(w, x[j], acc[r][j]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < simd::kWide; ++j) simd::store(c + r * ldc + j * kLanes, acc[r][j]);
  }
}

// Keys that one of rows [t, t + 4) sees, to whole columns of products.
int64_t keys_of(const ThreePass& a, int64_t t) {
  const int64_t seen = (a.first_pos + t + kRows + kColumns - 1) / kColumns * kColumns;
  return a.skip_unseen && seen < a.N ? seen : a.N;
}

void softmax(const ThreePass& a, int64_t t) {
  float* s = a.scores + t * a.N;
  const int64_t n = a.first_pos + t + 1, end = keys_of(a, t / kRows * kRows);
  Vec high = simd::splat(-INFINITY);
  for (int64_t i = 0; i < end; i += kLanes) {
    const int left = static_cast<int>(n - i < kLanes ? (n > i ? n - i : 0) : kLanes);
    const Vec x = simd::mul(simd::load(s + i), simd::splat(a.scale));
    const Vec kept = simd::keep(x, 0, left, -INFINITY);
    simd::store(s + i, kept);
    high = simd::max(high, kept);
  }
  const Vec max = simd::splat(simd::largest(high));
  Vec total = simd::zero();
  for (int64_t i = 0; i < end; i += kLanes) {
    const Vec w = simd::exp(simd::sub(simd::load(s + i), max));
    simd::store(s + i, w);
    total = simd::add(total, w);
  }
  const Vec inverse = simd::splat(1.0f / simd::sum(total));
  for (int64_t i = 0; i < end; i += kLanes) simd::store(s + i, simd::mul(simd::load(s + i), inverse));
}

void run(const ThreePass& a) {
  for (int64_t column = 0; column < a.N; column += kColumns) {  // a panel of K stays in the cache
    for (int64_t t = 0; t < a.T; t += kRows) {
      if (column >= keys_of(a, t)) continue;
      product(a.q + t * a.D, a.D, a.k + column, a.N, a.D, a.scores + t * a.N + column, a.N);
    }
  }
  for (int64_t t = 0; t < a.T; ++t) softmax(a, t);
  for (int64_t t = 0; t < a.T; t += kRows) {
    for (int64_t d = 0; d < a.D; d += kColumns) {
      product(a.scores + t * a.N, a.N, a.v + d, a.D, keys_of(a, t), a.out + t * a.D + d, a.D);
    }
  }
}

}  // namespace three_pass
}  // namespace
}  // namespace tandem
