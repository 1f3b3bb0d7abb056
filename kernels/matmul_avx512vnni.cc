// Matmul of the quantized tile forms with AVX-512 VNNI. One output element is: for each block of 32
// k in ascending order, an exact int32 dot product (of all planes, joined), converted, times
// (weight scale * activation scale), added by one fma (and one more for the minimum). kRows changes
// how many activation rows share an unpacked block, never these operations or their order.
#include "kernels/columns.h"
#include "kernels/forms_avx512vnni.h"
#include "kernels/prefetch_block.h"

namespace tandem::avx512vnni {
namespace {

// Activation rows that stay in L2 (1 MB on Zen 4) while the weight tiles pass: 64 rows of K = 2048
// are 330 KB.
constexpr int64_t kRowsInCache = 64;
constexpr int64_t kMostRows = 8;      // whose accumulators and sums fit the registers beside a block of weights

// A block of kRows activation rows.
struct ActRows {
  const uint8_t* first;
  size_t stride;
  const ActBlock& operator[](int m) const {
    return *reinterpret_cast<const ActBlock*>(first + static_cast<size_t>(m) * stride);
  }
};

// sum += w * the four bytes at a, which is read as a broadcast operand. As an intrinsic, g++ keeps
// the broadcasts of a block in registers it does not have, and spills them.
TANDEM_INLINE __m512i dot_4(__m512i sum, __m512i w, const int8_t* a) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(w), "m"(*reinterpret_cast<const int8_t(*)[4]>(a)));
  return sum;
}

// sums[m] += dot products of kVectors vectors of weights with a row's bytes, step by step in all
// rows: several chains must be in flight to hide the latency of a dot product. bytes(m) points to
// the first of them.
template <int kVectors, int kRows, typename Bytes>
TANDEM_INLINE void dot(const __m512i* weights, Bytes bytes, __m512i sums[kRows]) {
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    const __m512i w = weights[j];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) sums[m] = dot_4(sums[m], w, bytes(m) + 4 * j);
  }
}

template <int kBits, int kRows>
TANDEM_INLINE void shift_left(__m512i sums[kRows]) {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) sums[m] = _mm512_slli_epi32(sums[m], kBits);
}

// What the sums owe for the weights' offset. `half`: of a split block.
template <typename Form>
TANDEM_INLINE __m512i add_offset(__m512i sum, const ActBlock& a, int half) {
  if constexpr (Form::kOffset == 0) return sum;
  const int32_t owed = Form::kIsSplit        ? a.c32[half]
                       : Form::kOffset == 8  ? a.c8
                       : Form::kOffset == 16 ? a.c16
                                             : a.c128;
  return _mm512_add_epi32(sum, _mm512_set1_epi32(owed));
}

// acc += sums * (scale * d)
TANDEM_INLINE __m512 add_scaled(__m512i sums, __m512 scale, __m512 d, __m512 acc) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_mul_ps(scale, d), acc);
}

// One scale (and minimum) a block. The sums stay exact: 256 * coarse + fine bytes (act_block.h).
// q: eight vectors of quants, then (kIsNibble) the four packed ones.
template <typename Form, int kRows>
TANDEM_INLINE void add_block(const __m512i* q, __m512 scale, __m512 min, const ActRows& a,
                             __m512* acc) {
  const auto coarse = [&](int m) { return a[m].coarse; };
  const auto fine = [&](int m) { return a[m].fine; };
  __m512i sums[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) sums[m] = _mm512_setzero_si512();
  dot<8, kRows>(q, coarse, sums);
  if constexpr (Form::kIsNibble) {
    shift_left<8, kRows>(sums);
    dot<4, kRows>(q + 8, fine, sums);
  } else {
    shift_left<4, kRows>(sums);
    dot<4, kRows>(q + 4, fine, sums);
    shift_left<4, kRows>(sums);
    dot<4, kRows>(q, fine, sums);
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    sums[m] = add_offset<Form>(sums[m], a[m], 0);
    acc[m] = add_scaled(sums[m], scale, _mm512_set1_ps(a[m].d), acc[m]);
    if constexpr (Form::kHasMin) acc[m] = _mm512_fmadd_ps(min, _mm512_set1_ps(a[m].s), acc[m]);
  }
}

// One half (a constant, once inlined) of a block whose halves have a scale each.
template <typename Form, int kRows>
TANDEM_INLINE void add_half_block(int half, const __m512i* q, __m512 scale, const ActRows& a,
                                  __m512* acc) {
  const auto coarse = [&](int m) { return a[m].coarse + 16 * half; };
  const auto fine = [&](int m) { return a[m].fine; };
  __m512i sums[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) sums[m] = _mm512_setzero_si512();
  dot<4, kRows>(q + 4 * half, coarse, sums);
  if (half == 0) shift_left<8, kRows>(sums);
  if (half == 1) shift_left<4, kRows>(sums);
  dot<4, kRows>(q + 4 * half, fine, sums);
  if (half == 1) shift_left<4, kRows>(sums);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    sums[m] = add_offset<Form>(sums[m], a[m], half);
    acc[m] = add_scaled(sums[m], scale, _mm512_set1_ps(a[m].d), acc[m]);
  }
}

template <typename Form, int kRows>
TANDEM_INLINE void add_split_mins(__m512 min, __m512 min2, const ActRows& a, __m512* acc) {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    const __m512 d = _mm512_set1_ps(a[m].d);
    acc[m] = add_scaled(_mm512_set1_epi32(a[m].c32[0]), min, d, acc[m]);
    acc[m] = add_scaled(_mm512_set1_epi32(a[m].c32[1]), min2, d, acc[m]);
  }
}

// kRows activation rows times one tile, straight from its packed form: what a block costs to unpack is little beside eight rows
// (a copy of the unpacked tile for all passes of eight was slower, by a sixth for 16 rows of Q4_1). is_first: the tile's bytes
// still come from memory.
template <typename Form, int kRows>
void multiply(const TilePlanes& tile, int64_t n_blocks, bool is_first, const uint8_t* act,
              size_t act_stride, float* y, int64_t ldy, __mmask16 columns) {
  __m512 acc[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) acc[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < n_blocks; ++b) {
    if (kRows > 1 && is_first) prefetch_block(Form::kShape, tile, b + kBlocksAhead);
    Block512 w;
    Form::load(tile, b, &w);
    const ActRows a = {act + static_cast<size_t>(b) * sizeof(ActBlock), act_stride};
    if constexpr (Form::kIsSplit) {
      add_half_block<Form, kRows>(0, w.q, w.scale, a, acc);
      add_half_block<Form, kRows>(1, w.q, w.scale2, a, acc);
      if constexpr (Form::kHasMin) add_split_mins<Form, kRows>(w.min, w.min2, a, acc);
    } else {
      add_block<Form, kRows>(w.q, w.scale, w.min, a, acc);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) _mm512_mask_storeu_ps(y + m * ldy, columns, acc[m]);
}

template <typename Form>
void multiply_tile(const TilePlanes& tile, int64_t n_blocks, const uint8_t* act, size_t act_stride,
                   int64_t M, float* y, int64_t ldy, __mmask16 columns) {
  constexpr decltype(&multiply<Form, 1>) kMultiply[kMostRows] = {
      multiply<Form, 1>, multiply<Form, 2>, multiply<Form, 3>, multiply<Form, 4>,
      multiply<Form, 5>, multiply<Form, 6>, multiply<Form, 7>, multiply<Form, 8>};
  for (int64_t m = 0; m < M; m += kMostRows) {
    const int64_t rows = M - m < kMostRows ? M - m : kMostRows;
    kMultiply[rows - 1](tile, n_blocks, m == 0, act + static_cast<size_t>(m) * act_stride, act_stride,
                        y + m * ldy, ldy, columns);
  }
}

__mmask16 valid_columns(int64_t n_rows, int64_t tile) {
  const int64_t left = n_rows - tile * kTileRows;
  return static_cast<__mmask16>(left >= 16 ? 0xffffu : (1u << left) - 1);
}

template <GgmlType kType>
void matmul_form(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
                 int64_t M, float* y, int64_t ldy) {
  using Form = Form512<kType>;
  const size_t act_stride = act_row_bytes_of(w.n_cols);
  for (int64_t m = 0; m < M; m += kRowsInCache) {
    const int64_t rows = M - m < kRowsInCache ? M - m : kRowsInCache;
    for (int64_t t = tile_begin; t < tile_end; ++t) {
      multiply_tile<Form>(tile_planes(Form::kShape, w, t), w.n_cols / QK,
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
    TANDEM_TILED_TYPES(TANDEM_CASE)
#undef TANDEM_CASE
    default:
      return matmul_plain(w, tile_begin, tile_end, act, M, y, ldy);
  }
}

}  // namespace tandem::avx512vnni
