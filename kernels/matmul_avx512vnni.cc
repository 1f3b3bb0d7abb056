// Matmul of the quantized tile forms with AVX-512 VNNI. One output element is: for each block of 32
// k in ascending order, an exact int32 dot product (of both planes, joined), converted, times
// (weight scale * activation scale), added by one fma (and one more for the minimum). kRows changes
// how many activation rows share an unpacked block, never these operations or their order.
#include "kernels/columns.h"
#include "kernels/forms_avx512vnni.h"

namespace tandem::avx512vnni {
namespace {

// Activation rows that stay in L2 (1 MB on Zen 4) while the weight tiles pass: 64 rows of K = 2048
// are 256 KB.
constexpr int64_t kRowsInCache = 64;
constexpr int kRowsAbreast = 4;  // rows whose dot products run side by side

template <typename Form>
TANDEM_INLINE __m512i first_sum(const ActBlock& a) {
  if constexpr (Form::kOffset == 8) return _mm512_set1_epi32(a.c8);
  if constexpr (Form::kOffset == 16) return _mm512_set1_epi32(a.c16);
  if constexpr (Form::kOffset == 128) return _mm512_set1_epi32(a.c128);
  return _mm512_setzero_si512();
}

// Dot products of vectors [kBegin, kEnd) with both planes of kRows rows, step by step in all of
// them: several chains must be in flight to hide the latency of a dot product, and the scheduler is
// too small to find them. fine[] holds the start value and then 256 * coarse + fine.
template <int kBegin, int kEnd, int kRows>
TANDEM_INLINE void dot(const Block512& w, const ActBlock* const a[kRows], __m512i fine[kRows]) {
  __m512i coarse[kRows];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) coarse[m] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int j = kBegin; j < kEnd; ++j) {
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      coarse[m] = _mm512_dpbusd_epi32(coarse[m], w.q[j], broadcast4(a[m]->coarse + 4 * j));
      fine[m] = _mm512_dpbusd_epi32(fine[m], w.q[j], broadcast4(a[m]->fine + 4 * j));
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m)
    fine[m] = _mm512_add_epi32(_mm512_slli_epi32(coarse[m], 8), fine[m]);
}

// acc += sums * (scale * d)
TANDEM_INLINE __m512 add_scaled(__m512i sums, __m512 scale, __m512 d, __m512 acc) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_mul_ps(scale, d), acc);
}

// One scale (and minimum) a block.
template <typename Form, int kRows>
TANDEM_INLINE void add_block(const Block512& w, const ActBlock* const a[kRows], __m512* acc) {
  __m512i sums[kRows];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) sums[m] = first_sum<Form>(*a[m]);
  dot<0, 8, kRows>(w, a, sums);
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    acc[m] = add_scaled(sums[m], w.scale, _mm512_set1_ps(a[m]->d), acc[m]);
    if constexpr (Form::kHasMin) acc[m] = _mm512_fmadd_ps(w.min, _mm512_set1_ps(a[m]->s), acc[m]);
  }
}

// A scale (and minimum) for each half of the block.
template <typename Form, int kRows>
TANDEM_INLINE void add_split_block(const Block512& w, const ActBlock* const a[kRows], __m512* acc) {
  __m512i low[kRows], high[kRows];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    low[m] = Form::kOffset ? _mm512_set1_epi32(a[m]->c32[0]) : _mm512_setzero_si512();
    high[m] = Form::kOffset ? _mm512_set1_epi32(a[m]->c32[1]) : _mm512_setzero_si512();
  }
  dot<0, 4, kRows>(w, a, low);
  dot<4, 8, kRows>(w, a, high);
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    const __m512 d = _mm512_set1_ps(a[m]->d);
    acc[m] = add_scaled(low[m], w.scale, d, acc[m]);
    acc[m] = add_scaled(high[m], w.scale2, d, acc[m]);
    if constexpr (Form::kHasMin) {
      acc[m] = add_scaled(_mm512_set1_epi32(a[m]->c32[0]), w.min, d, acc[m]);
      acc[m] = add_scaled(_mm512_set1_epi32(a[m]->c32[1]), w.min2, d, acc[m]);
    }
  }
}

// kRows activation rows times one tile.
template <typename Form, int kRows>
void multiply(const uint8_t* tile, int64_t n_blocks, const uint8_t* act, size_t act_stride,
              float* y, int64_t ldy, __mmask16 columns) {
  __m512 acc[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) acc[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < n_blocks; ++b) {
    Block512 w;
    Form::load(tile, b, &w);
    const uint8_t* block = act + static_cast<size_t>(b) * sizeof(ActBlock);
    constexpr int kStep = kRows < kRowsAbreast ? kRows : kRowsAbreast;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m += kStep) {
      const ActBlock* a[kStep];
#pragma GCC unroll 4
      for (int i = 0; i < kStep; ++i) {
        a[i] = reinterpret_cast<const ActBlock*>(block + static_cast<size_t>(m + i) * act_stride);
      }
      if constexpr (Form::kIsSplit) {
        add_split_block<Form, kStep>(w, a, acc + m);
      } else {
        add_block<Form, kStep>(w, a, acc + m);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) _mm512_mask_storeu_ps(y + m * ldy, columns, acc[m]);
}

template <typename Form>
void multiply_tile(const uint8_t* tile, int64_t n_blocks, const uint8_t* act, size_t act_stride,
                   int64_t M, float* y, int64_t ldy, __mmask16 columns) {
  int64_t m = 0;
  const auto step = [&](auto multiply_rows, int64_t rows) {
    multiply_rows(tile, n_blocks, act + static_cast<size_t>(m) * act_stride, act_stride,
                  y + m * ldy, ldy, columns);
    m += rows;
  };
  while (M - m >= 8) step(multiply<Form, 8>, 8);
  if (M - m >= 4) step(multiply<Form, 4>, 4);
  if (M - m >= 2) step(multiply<Form, 2>, 2);
  if (M - m >= 1) step(multiply<Form, 1>, 1);
}

__mmask16 valid_columns(int64_t n_rows, int64_t tile) {
  const int64_t left = n_rows - tile * kTileRows;
  return static_cast<__mmask16>(left >= 16 ? 0xffffu : (1u << left) - 1);
}

template <GgmlType kType>
void matmul_form(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
                 int64_t M, float* y, int64_t ldy) {
  using Form = Form512<kType>;
  const size_t bytes = tile_bytes(Form::kShape, w.n_cols), act_stride = act_row_bytes_of(w.n_cols);
  for (int64_t m = 0; m < M; m += kRowsInCache) {
    const int64_t rows = M - m < kRowsInCache ? M - m : kRowsInCache;
    for (int64_t t = tile_begin; t < tile_end; ++t) {
      multiply_tile<Form>(w.data + static_cast<size_t>(t) * bytes, w.n_cols / QK,
                          act + static_cast<size_t>(m) * act_stride, act_stride, rows,
                          y + m * ldy + t * kTileRows, ldy, valid_columns(w.n_rows, t));
    }
  }
}

}  // namespace

void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
            int64_t M, float* y, int64_t ldy) {
  switch (w.type) {
#define TANDEM_CASE(type) \
  case GgmlType::type:    \
    return matmul_form<GgmlType::type>(w, tile_begin, tile_end, act, M, y, ldy);
    TANDEM_QUANTIZED_TYPES(TANDEM_CASE)
#undef TANDEM_CASE
    default:
      return matmul_plain(w, tile_begin, tile_end, act, M, y, ldy);
  }
}

}  // namespace tandem::avx512vnni
