// Matmul of the quantized tile forms in 256-bit vectors, once for the columns that have them:
// matmul_<isa>.cc defines `dot_plane` after forms_avx2.h, then includes this. One output element
// is: for each block of 32 k in ascending order, an exact int32 dot product, converted, times
// (weight scale * activation scale), added by one fma (and one more for the minimum). kRows never
// changes these operations or their order; integers are exact, so these columns give the same bits.
//
//   // Exact dot products of vectors [kBegin, kEnd) with one plane (whose bytes for vector kBegin
//   // start at a), added to `sum`.
//   template <typename Form, int kBegin, int kEnd>
//   __m256i dot_plane(const Block256& w, const int8_t* a, __m256i sum);
#pragma once

#include "kernels/columns.h"
#include "kernels/prefetch_block.h"

namespace tandem {
namespace {

constexpr int64_t kRowsInCache = 32;  // activation rows that stay in L2 while the weight tiles pass

// Of the first half with value / d.
template <typename Form>
TANDEM_INLINE __m256i dot_first(const Block256& w, const ActBlock& a) {
  const __m256i coarse = dot_plane<Form, 0, 4>(w, a.coarse, _mm256_setzero_si256());
  return dot_plane<Form, 0, 4>(w, a.fine, _mm256_slli_epi32(coarse, 8));
}

// Of the second half, whose fine bytes count 16 times.
template <typename Form>
TANDEM_INLINE __m256i dot_second(const Block256& w, const ActBlock& a) {
  const __m256i coarse = dot_plane<Form, 4, 8>(w, a.coarse + 16, _mm256_setzero_si256());
  const __m256i sum = dot_plane<Form, 4, 8>(w, a.fine, _mm256_slli_epi32(coarse, 4));
  return _mm256_slli_epi32(sum, 4);
}

// Of both: 16 * (16 * coarse + second fine) + first fine.
template <typename Form>
TANDEM_INLINE __m256i dot(const Block256& w, const ActBlock& a) {
  __m256i sum = dot_plane<Form, 0, 8>(w, a.coarse, _mm256_setzero_si256());
  sum = dot_plane<Form, 4, 8>(w, a.fine, _mm256_slli_epi32(sum, 4));
  return dot_plane<Form, 0, 4>(w, a.fine, _mm256_slli_epi32(sum, 4));
}

// acc += sums * (scale * d)
TANDEM_INLINE __m256 add_scaled(__m256i sums, __m256 scale, __m256 d, __m256 acc) {
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_mul_ps(scale, d), acc);
}

template <typename Form>
TANDEM_INLINE __m256i first_sum(const ActBlock& a) {
  if constexpr (Form::kOffset == 8) return _mm256_set1_epi32(a.c8);
  if constexpr (Form::kOffset == 16) return _mm256_set1_epi32(a.c16);
  return _mm256_setzero_si256();
}

template <typename Form>
TANDEM_INLINE __m256 add_block(const Block256& w, const ActBlock& a, __m256 acc) {
  const __m256 d = _mm256_set1_ps(a.d);
  if constexpr (Form::kIsSplit) {
    const __m256i low = Form::kOffset ? _mm256_set1_epi32(a.c32[0]) : _mm256_setzero_si256();
    const __m256i high = Form::kOffset ? _mm256_set1_epi32(a.c32[1]) : _mm256_setzero_si256();
    acc = add_scaled(_mm256_add_epi32(dot_first<Form>(w, a), low), w.scale, d, acc);
    acc = add_scaled(_mm256_add_epi32(dot_second<Form>(w, a), high), w.scale2, d, acc);
    if constexpr (Form::kHasMin) {
      acc = add_scaled(_mm256_set1_epi32(a.c32[0]), w.min, d, acc);
      acc = add_scaled(_mm256_set1_epi32(a.c32[1]), w.min2, d, acc);
    }
    return acc;
  }
  const __m256i sum = _mm256_add_epi32(dot<Form>(w, a), first_sum<Form>(a));
  acc = add_scaled(sum, w.scale, d, acc);
  if constexpr (Form::kHasMin) acc = _mm256_fmadd_ps(w.min, _mm256_set1_ps(a.s), acc);
  return acc;
}

// kRows activation rows times half a tile. is_first: the tile's bytes still come from memory.
template <typename Form, int kRows>
void multiply(const TilePlanes& tile, int64_t n_blocks, int half, bool is_first, const uint8_t* act,
              size_t act_stride, float* y, int64_t ldy, int columns) {
  __m256 acc[kRows];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) acc[m] = _mm256_setzero_ps();
  for (int64_t b = 0; b < n_blocks; ++b) {
    if (kRows > 1 && is_first) prefetch_block(Form::kShape, tile, b + kBlocksAhead);
    Block256 w;
    Form::load(tile, b, half, &w);
    const uint8_t* a = act + static_cast<size_t>(b) * sizeof(ActBlock);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const auto& block =
          *reinterpret_cast<const ActBlock*>(a + static_cast<size_t>(m) * act_stride);
      acc[m] = add_block<Form>(w, block, acc[m]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) store_columns(y + m * ldy, columns, acc[m]);
}

template <typename Form>
void multiply_half(const TilePlanes& tile, int64_t n_blocks, int half, const uint8_t* act,
                   size_t act_stride, int64_t M, float* y, int64_t ldy, int columns) {
  int64_t m = 0;
  const auto step = [&](auto multiply_rows, int64_t rows) {
    multiply_rows(tile, n_blocks, half, half == 0 && m == 0, act + static_cast<size_t>(m) * act_stride,
                  act_stride, y + m * ldy, ldy, columns);
    m += rows;
  };
  while (M - m >= 4) step(multiply<Form, 4>, 4);
  if (M - m >= 2) step(multiply<Form, 2>, 2);
  if (M - m >= 1) step(multiply<Form, 1>, 1);
}

template <GgmlType kType>
void matmul_form(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
                 int64_t M, float* y, int64_t ldy) {
  using Form = Form256<kType>;
  const size_t act_stride = act_row_bytes_of(w.n_cols);
  for (int64_t m = 0; m < M; m += kRowsInCache) {
    const int64_t rows = M - m < kRowsInCache ? M - m : kRowsInCache;
    for (int64_t t = tile_begin; t < tile_end; ++t) {
      for (int half = 0; half < 2; ++half) {
        multiply_half<Form>(tile_planes(Form::kShape, w, t), w.n_cols / QK, half,
                            act + static_cast<size_t>(m) * act_stride, act_stride, rows,
                            y + m * ldy + t * kTileRows + 8 * half, ldy,
                            columns_of(w.n_rows, t, half));
      }
    }
  }
}

// The whole op: F32, F16 and BF16 weights go to the column these columns share.
TANDEM_INLINE void matmul_any(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
                              const uint8_t* act, int64_t M, float* y, int64_t ldy) {
  switch (w.type) {
#define TANDEM_CASE(type) \
  case GgmlType::type:    \
    return matmul_form<GgmlType::type>(w, tile_begin, tile_end, act, M, y, ldy);
    TANDEM_TILED_TYPES(TANDEM_CASE)
#undef TANDEM_CASE
    default:
      return avx2::matmul_plain(w, tile_begin, tile_end, act, M, y, ldy);
  }
}

}  // namespace
}  // namespace tandem
