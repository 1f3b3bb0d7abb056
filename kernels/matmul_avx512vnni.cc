// Matmul of the quantized tile forms with AVX-512 VNNI. One output element is: for each block of 32 k in
// ascending order, an exact int32 dot product, converted, times (weight scale * activation scale), added by
// one fma (and one more for the minimum). kRows changes how many activation rows share an unpacked
// block, never these operations or their order.
#include "kernels/columns.h"
#include "kernels/forms_avx512vnni.h"

namespace tandem::avx512vnni {
namespace {

// Activation rows that stay in L2 (1 MB on Zen 4) while the weight tiles pass: 64 rows of K = 2048 are
// 256 KB.
constexpr int64_t kRowsInCache = 64;

template <typename Form>
TANDEM_INLINE __m512i first_sum(const ActBlock& a) {
  if constexpr (Form::kOffset == 8) return _mm512_set1_epi32(a.c8);
  if constexpr (Form::kOffset == 16) return _mm512_set1_epi32(a.c16);
  if constexpr (Form::kOffset == 128) return _mm512_set1_epi32(a.c128);
  return _mm512_setzero_si512();
}

template <typename Form>
TANDEM_INLINE __m512 add_block(const Block512& w, const ActBlock& a, __m512 acc) {
  const __m512 d = _mm512_set1_ps(a.d);
  if constexpr (Form::kIsSplit) {
    __m512i part[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      part[h] = Form::kOffset ? _mm512_set1_epi32(a.c32[h]) : _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int j = 4 * h; j < 4 * h + 4; ++j) {
        part[h] = _mm512_dpbusd_epi32(part[h], w.q[j], broadcast4(a.qs + 4 * j));
      }
      part[h] = _mm512_mullo_epi32(part[h], w.scales[h]);
    }
    const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(part[0], part[1]));
    acc = _mm512_fmadd_ps(sum, _mm512_mul_ps(w.scale, d), acc);
    if constexpr (Form::kHasMin) {
      const __m512i m0 = _mm512_mullo_epi32(w.mins[0], _mm512_set1_epi32(a.c32[0]));
      const __m512i m1 = _mm512_mullo_epi32(w.mins[1], _mm512_set1_epi32(a.c32[1]));
      const __m512 mins = _mm512_cvtepi32_ps(_mm512_add_epi32(m0, m1));
      acc = _mm512_fmadd_ps(mins, _mm512_mul_ps(w.min, d), acc);
    }
    return acc;
  }
  __m512i sum = first_sum<Form>(a);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) sum = _mm512_dpbusd_epi32(sum, w.q[j], broadcast4(a.qs + 4 * j));
  acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(w.scale, d), acc);
  if constexpr (Form::kHasMin) acc = _mm512_fmadd_ps(w.min, _mm512_set1_ps(a.s), acc);
  return acc;
}

// kRows activation rows times one tile.
template <typename Form, int kRows>
void multiply(const uint8_t* tile, int64_t n_blocks, const uint8_t* act, size_t act_stride, float* y,
              int64_t ldy, __mmask16 columns) {
  __m512 acc[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) acc[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < n_blocks; ++b) {
    Block512 w;
    Form::load(tile, b, &w);
    const uint8_t* a = act + static_cast<size_t>(b) * sizeof(ActPair);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const auto& pair = *reinterpret_cast<const ActPair*>(a + static_cast<size_t>(m) * act_stride);
      acc[m] = add_block<Form>(w, pair.coarse, acc[m]);
      acc[m] = add_block<Form>(w, pair.fine, acc[m]);
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
    multiply_rows(tile, n_blocks, act + static_cast<size_t>(m) * act_stride, act_stride, y + m * ldy,
                  ldy, columns);
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

void matmul_plain(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
                  int64_t M, float* y, int64_t ldy);

void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act, int64_t M,
            float* y, int64_t ldy) {
  switch (w.type) {
#define TANDEM_CASE(type) \
  case GgmlType::type: return matmul_form<GgmlType::type>(w, tile_begin, tile_end, act, M, y, ldy);
    TANDEM_CASE(kQ4_0)
    TANDEM_CASE(kQ4_1)
    TANDEM_CASE(kQ5_0)
    TANDEM_CASE(kQ5_1)
    TANDEM_CASE(kQ8_0)
    TANDEM_CASE(kQ2_K)
    TANDEM_CASE(kQ3_K)
    TANDEM_CASE(kQ4_K)
    TANDEM_CASE(kQ5_K)
    TANDEM_CASE(kQ6_K)
    TANDEM_CASE(kIQ4_NL)
    TANDEM_CASE(kIQ4_XS)
    TANDEM_CASE(kMXFP4)
#undef TANDEM_CASE
    default: return matmul_plain(w, tile_begin, tile_end, act, M, y, ldy);
  }
}

}  // namespace tandem::avx512vnni
