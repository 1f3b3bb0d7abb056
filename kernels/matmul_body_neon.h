// Matmul of the quantized tile forms, once for the NEON columns: matmul_<isa>.cc defines `Dots` after forms_neon.h,
// then includes this. One output element is: for each block of 32 k in ascending order, an exact int32 dot
// product (of all planes, joined), converted, times (weight scale * activation scale), added by one fma (and
// one more for the minimum). kRows changes how many activation rows share an unpacked block, never these
// operations or their order; integers are exact, so all NEON columns give the same bits.
//
// struct Dots {
//   static constexpr int kMostRows;  // 4 or 8: as many as the registers hold
//   // Once a block, before `sums` with the same kRows.
//   template <int kRows> static void prepare(Block128* w);
//   // sums[m] = dot products of vectors [kBegin, kEnd) with value / d of row a[m] (act_block.h).
//   template <typename Form, int kBegin, int kEnd, int kRows>
//   static void sums(const Block128& w, const ActBlock* const a[kRows], int32x4_t sums[kRows]);
// };
#pragma once

#include "kernels/columns.h"

namespace tandem {
namespace {

constexpr int64_t kRowsInCache = 32;  // activation rows that stay in a small L2 while the weight tiles pass
constexpr int kRowsAbreast = 2;       // rows whose chains of dot products run side by side

// acc += sums * (scale * d)
TANDEM_INLINE float32x4_t add_scaled(int32x4_t sums, float32x4_t scale, float d, float32x4_t acc) {
  return vfmaq_f32(acc, vcvtq_f32_s32(sums), vmulq_n_f32(scale, d));
}

template <typename Form, int kRows>
TANDEM_INLINE void add_block(const Block128& w, const ActBlock* const a[kRows], float32x4_t* acc) {
  if constexpr (Form::kIsSplit) {  // a scale (and minimum) for each half of the block
    int32x4_t low[kRows], high[kRows];
    Dots::sums<Form, 0, 4, kRows>(w, a, low);
    Dots::sums<Form, 4, 8, kRows>(w, a, high);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      acc[m] = add_scaled(low[m], w.scale, a[m]->d, acc[m]);
      acc[m] = add_scaled(high[m], w.scale2, a[m]->d, acc[m]);
      if constexpr (Form::kHasMin) {
        acc[m] = add_scaled(vdupq_n_s32(a[m]->c32[0]), w.min, a[m]->d, acc[m]);
        acc[m] = add_scaled(vdupq_n_s32(a[m]->c32[1]), w.min2, a[m]->d, acc[m]);
      }
    }
  } else {
    int32x4_t sums[kRows];
    Dots::sums<Form, 0, 8, kRows>(w, a, sums);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      acc[m] = add_scaled(sums[m], w.scale, a[m]->d, acc[m]);
      if constexpr (Form::kHasMin) acc[m] = vfmaq_n_f32(acc[m], w.min, a[m]->s);
    }
  }
}

// kRows activation rows times a quarter of a tile.
template <typename Form, int kRows>
void multiply(const TilePlanes& tile, int64_t n_blocks, int quarter, const uint8_t* act, size_t act_stride,
              float* y, int64_t ldy, int columns) {
  float32x4_t acc[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) acc[m] = vdupq_n_f32(0);
  for (int64_t b = 0; b < n_blocks; ++b) {
    Block128 w;
    Form::load(tile, b, quarter, &w);
    Dots::prepare<kRows>(&w);
    const uint8_t* block = act + static_cast<size_t>(b) * sizeof(ActBlock);
    constexpr int kStep = kRows < kRowsAbreast ? kRows : kRowsAbreast;
#pragma GCC unroll 8
    for (int m = 0; m < kRows; m += kStep) {
      const ActBlock* a[kStep];
#pragma GCC unroll 4
      for (int i = 0; i < kStep; ++i) {
        a[i] = reinterpret_cast<const ActBlock*>(block + static_cast<size_t>(m + i) * act_stride);
      }
      add_block<Form, kStep>(w, a, acc + m);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) store_columns(y + m * ldy, columns, acc[m]);
}

template <typename Form>
void multiply_quarter(const TilePlanes& tile, int64_t n_blocks, int quarter, const uint8_t* act, size_t act_stride,
                      int64_t M, float* y, int64_t ldy, int columns) {
  int64_t m = 0;
  const auto step = [&](auto multiply_rows, int64_t rows) {
    multiply_rows(tile, n_blocks, quarter, act + static_cast<size_t>(m) * act_stride, act_stride, y + m * ldy,
                  ldy, columns);
    m += rows;
  };
  if constexpr (Dots::kMostRows >= 8) {
    while (M - m >= 8) step(multiply<Form, 8>, 8);
  }
  while (M - m >= 4) step(multiply<Form, 4>, 4);
  if (M - m >= 2) step(multiply<Form, 2>, 2);
  if (M - m >= 1) step(multiply<Form, 1>, 1);
}

template <GgmlType kType>
void matmul_form(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act, int64_t M,
                 float* y, int64_t ldy) {
  using Form = Form128<kType>;
  const size_t act_stride = act_row_bytes_of(w.n_cols);
  for (int64_t m = 0; m < M; m += kRowsInCache) {
    const int64_t rows = M - m < kRowsInCache ? M - m : kRowsInCache;
    for (int64_t t = tile_begin; t < tile_end; ++t) {
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        multiply_quarter<Form>(tile_planes(Form::kShape, w, t), w.n_cols / QK, quarter,
                               act + static_cast<size_t>(m) * act_stride, act_stride, rows,
                               y + m * ldy + t * kTileRows + kQuarterRows * quarter, ldy,
                               columns_of(w.n_rows, t, quarter));
      }
    }
  }
}

// The whole op: F32, F16 and BF16 weights go to the column all NEON columns share.
TANDEM_INLINE void matmul_any(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
                              int64_t M, float* y, int64_t ldy) {
  switch (w.type) {
#define TANDEM_CASE(type) \
  case GgmlType::type:    \
    return matmul_form<GgmlType::type>(w, tile_begin, tile_end, act, M, y, ldy);
    TANDEM_TILED_TYPES(TANDEM_CASE)
#undef TANDEM_CASE
    default:
      return neon::matmul_plain(w, tile_begin, tile_end, act, M, y, ldy);
  }
}

}  // namespace
}  // namespace tandem
