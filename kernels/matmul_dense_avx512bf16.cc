// Matmul of BF16 weights with vdpbf16ps: activations are rounded to bfloat16 (kernel_table.h,
// matmul_dense), products are exact, and one output element is one chain of vdpbf16ps over ascending
// pairs of k. Twice the products an fma makes. Two planes of bfloat16 activations would be as exact as
// floats and as fast as fma, so they gain nothing.
// clang-format off
#include "kernels/simd_avx512vnni.h"  // first: words and TANDEM_SIMD
#include <string.h>
#include "kernels/columns.h"
#include "kernels/tile_layout.h"
// clang-format on

namespace tandem::avx512bf16 {
namespace {

constexpr int kManyRows = 12;
constexpr int64_t kTilesInCache = 8;  // share one rounding of the rows
constexpr int64_t kColumnsAtOnce = 1024;

// Rows rounded to bfloat16, kColumnsAtOnce of their columns; a row is no multiple of a page long.
struct alignas(64) RoundedRows {
  uint16_t x[kManyRows][kColumnsAtOnce + 32];
};

template <int kRows>
TANDEM_SIMD void round_rows(const float* x, int64_t ldx, int64_t n, RoundedRows* out) {
  for (int r = 0; r < kRows; ++r) {
    for (int64_t k = 0; k < n; k += 32) {
      const float* from = x + r * ldx + k;
      const __m512i both = reinterpret_cast<__m512i>(
          _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from)));
      _mm512_storeu_si512(&out->x[r][k], both);
    }
  }
}

// sum + a * b in pairs of bfloat16, which integer vectors hold: clang 16 ends by itself (stack overflow) where it
// optimizes a loop of the intrinsic or of variables of its type.
TANDEM_SIMD __m512 add_products(__m512 sum, __m512i a, __m512i b) {
#ifdef __clang__
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#endif
}

// y[kRows][kTiles * 16] (+)= rows[kRows][n] * weights; a tile's weights of k are 16 bfloat16 at 32 k.
template <int kTiles, int kRows>
void multiply(const uint8_t* tile, size_t bytes, int64_t n, const RoundedRows& rows, bool is_first,
              float* y, int64_t ldy, int64_t n_valid) {
  const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                         23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  __m512 acc[kTiles][kRows];
#pragma GCC unroll 4
  for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      acc[t][r] = is_first ? simd::zero() : simd::load_first(y + r * ldy + 16 * t, n_valid - 16 * t);
    }
  }
  for (int64_t k = 0; k < n; k += 2, tile += 64) {
    __m512i w[kTiles];
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) {
      const __m512i two = _mm512_load_si512(tile + static_cast<size_t>(t) * bytes);
      w[t] = _mm512_permutexvar_epi16(pairs, two);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      memcpy(&pair, &rows.x[r][k], 4);
      const __m512i x = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int t = 0; t < kTiles; ++t) acc[t][r] = add_products(acc[t][r], w[t], x);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) simd::store_first(y + r * ldy + 16 * t, n_valid - 16 * t, acc[t][r]);
  }
}

template <int kTiles, int kRows>
void multiply_group(const PackedMatrix& w, int64_t begin, int64_t end, int64_t column,
                    const float* x, int64_t ldx, float* y, int64_t ldy) {
  const size_t bytes = tile_bytes(*tile_shape(GgmlType::kBF16), w.n_cols);
  const int64_t left = w.n_cols - column, n = left < kColumnsAtOnce ? left : kColumnsAtOnce;
  RoundedRows rows;
  round_rows<kRows>(x, ldx, n, &rows);
  for (int64_t t = begin; t < end;) {
    const uint8_t* tile = w.data + static_cast<size_t>(t) * bytes + 32 * column;
    float* out = y + t * kTileRows;
    const int64_t valid = w.n_rows - t * kTileRows;
    if (end - t >= kTiles) {
      multiply<kTiles, kRows>(tile, bytes, n, rows, column == 0, out, ldy, valid);
      t += kTiles;
    } else {
      multiply<1, kRows>(tile, bytes, n, rows, column == 0, out, ldy, valid);
      ++t;
    }
  }
}

}  // namespace

void matmul_dense(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,
                  int64_t ldx, int64_t M, float* y, int64_t ldy) {
  if (w.type != GgmlType::kBF16) {
    return avx512vnni::matmul_dense(w, tile_begin, tile_end, x, ldx, M, y, ldy);
  }
  for (int64_t t = tile_begin; t < tile_end; t += kTilesInCache) {
    const int64_t end = t + kTilesInCache < tile_end ? t + kTilesInCache : tile_end;
    for (int64_t column = 0; column < w.n_cols; column += kColumnsAtOnce) {
      int64_t m = 0;
      const auto rows = [&](auto multiply_rows, int64_t n) {
        for (; M - m >= n; m += n) {
          multiply_rows(w, t, end, column, x + m * ldx + column, ldx, y + m * ldy, ldy);
        }
      };
      rows(multiply_group<2, kManyRows>, kManyRows);
      rows(multiply_group<4, 4>, 4);
      rows(multiply_group<4, 2>, 2);
      rows(multiply_group<4, 1>, 1);
    }
  }
}

}  // namespace tandem::avx512bf16
