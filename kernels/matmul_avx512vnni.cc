// Matmul of the quantized tile forms with AVX-512 VNNI. One output element is: for each block of 32
// k in ascending order, an exact int32 dot product (of all planes, joined), converted, times
// (weight scale * activation scale), added by one fma (and one more for the minimum). kRows changes
// how many activation rows share an unpacked block, never these operations or their order.
#include "kernels/columns.h"
#include "kernels/forms_avx512vnni.h"

namespace tandem::avx512vnni {
namespace {

// Activation rows that stay in L2 (1 MB on Zen 4) while the weight tiles pass: 64 rows of K = 2048
// are 330 KB.
constexpr int64_t kRowsInCache = 64;
constexpr int64_t kRowsOfPanel =
    8;                            // from so many rows on, a tile is unpacked once for all of them
constexpr int kPanelBlocks = 16;  // so that a panel and eight rows of activations fit L1

// Blocks of one tile, unpacked.
struct alignas(64) Panel {
  __m512i q[kPanelBlocks][12];  // as Block512::q, then (kIsNibble) the four packed vectors
  __m512 scale[kPanelBlocks], scale2[kPanelBlocks], min[kPanelBlocks], min2[kPanelBlocks];
};

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

// kRows activation rows times one tile, straight from its packed form.
template <typename Form, int kRows>
void multiply(const TilePlanes& tile, int64_t n_blocks, const uint8_t* act, size_t act_stride,
              float* y, int64_t ldy, __mmask16 columns) {
  __m512 acc[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) acc[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < n_blocks; ++b) {
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
void unpack(const TilePlanes& tile, int64_t first, int64_t n_blocks, Panel* panel) {
  for (int64_t b = 0; b < n_blocks; ++b) {
    Block512 w;
    Form::load(tile, first + b, &w);
#pragma GCC unroll 12
    for (int j = 0; j < (Form::kIsNibble ? 12 : 8); ++j) panel->q[b][j] = w.q[j];
    panel->scale[b] = w.scale;
    if constexpr (Form::kIsSplit) panel->scale2[b] = w.scale2;
    if constexpr (Form::kHasMin) panel->min[b] = w.min;
    if constexpr (Form::kIsSplit && Form::kHasMin) panel->min2[b] = w.min2;
  }
}

// kRows activation rows (act: at the panel's first block) times a panel, added to y: loading the
// accumulators again changes nothing in them. `ahead`, where not null: the packed bytes of the
// panel after this one, brought in while this one is multiplied.
template <typename Form, int kRows>
void multiply_panel(const Panel& panel, int64_t n_blocks, bool is_first, const TilePlanes& ahead,
                    const uint8_t* act, size_t act_stride, float* y, int64_t ldy,
                    __mmask16 columns) {
  constexpr int kBlockBytes = group_bytes(Form::kShape) / Form::kShape.group;
  __m512 acc[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
    acc[m] = is_first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(columns, y + m * ldy);
  for (int64_t b = 0; b < n_blocks; ++b) {
    const ActRows a = {act + static_cast<size_t>(b) * sizeof(ActBlock), act_stride};
    if (ahead.first) {
#pragma GCC unroll 10
      for (int i = 0; i < kBlockBytes; i += 64)
        _mm_prefetch(ahead.first + b * kBlockBytes + i, _MM_HINT_T0);
      if constexpr (is_nested(Form::kShape)) {
#pragma GCC unroll 4
        for (int i = 0; i < kResidualBlockBytes; i += 64)
          _mm_prefetch(ahead.residual + b * kResidualBlockBytes + i, _MM_HINT_T0);
      }
    }
    if constexpr (Form::kIsSplit) {
      add_half_block<Form, kRows>(0, panel.q[b], panel.scale[b], a, acc);
      add_half_block<Form, kRows>(1, panel.q[b], panel.scale2[b], a, acc);
      if constexpr (Form::kHasMin) add_split_mins<Form, kRows>(panel.min[b], panel.min2[b], a, acc);
    } else {
      add_block<Form, kRows>(panel.q[b], panel.scale[b], panel.min[b], a, acc);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) _mm512_mask_storeu_ps(y + m * ldy, columns, acc[m]);
}

// Calls eight(m) for every eight rows, then four, two, one for the rest.
template <typename Eight, typename Four, typename Two, typename One>
TANDEM_INLINE void split_rows(int64_t M, Eight eight, Four four, Two two, One one) {
  int64_t m = 0;
  for (; M - m >= 8; m += 8) eight(m);
  if (M - m >= 4) four(m), m += 4;
  if (M - m >= 2) two(m), m += 2;
  if (M - m >= 1) one(m);
}

template <typename Form>
void multiply_tile(const TilePlanes& tile, int64_t n_blocks, const uint8_t* act, size_t act_stride,
                   int64_t M, float* y, int64_t ldy, __mmask16 columns) {
  if (M < kRowsOfPanel) {
    const auto call = [&](auto multiply_rows) {
      return [=](int64_t m) {
        multiply_rows(tile, n_blocks, act + static_cast<size_t>(m) * act_stride, act_stride,
                      y + m * ldy, ldy, columns);
      };
    };
    split_rows(
        M, [](int64_t) {}, call(multiply<Form, 4>), call(multiply<Form, 2>),
        call(multiply<Form, 1>));
    return;
  }
  Panel panel;
  // Of about one size: 16 and 2 blocks of K = 576 were 3 % slower than twice 9, and a small panel leaves no time to
  // bring in the next.
  const int64_t n_panels = (n_blocks + kPanelBlocks - 1) / kPanelBlocks;
  const int64_t each = (n_blocks + n_panels - 1) / n_panels;
  for (int64_t b = 0; b < n_blocks; b += each) {
    const int64_t n = n_blocks - b < each ? n_blocks - b : each;
    unpack<Form>(tile, b, n, &panel);
    const uint8_t* first_act = act + static_cast<size_t>(b) * sizeof(ActBlock);
    // Tiles follow one another, so that after the last panel comes the next tile's first. (A
    // prefetch past the end of the matrix is ignored.)
    TilePlanes ahead = {tile.first + (b + n) / Form::kShape.group * static_cast<int64_t>(group_bytes(Form::kShape)),
                        nullptr, nullptr};
    if constexpr (is_nested(Form::kShape)) ahead.residual = tile.residual + (b + n) * kResidualBlockBytes;
    const auto call = [&](auto multiply_rows) {
      return [=, &panel](int64_t m) {
        multiply_rows(panel, n, b == 0, m == 0 ? ahead : TilePlanes{nullptr, nullptr, nullptr},
                      first_act + static_cast<size_t>(m) * act_stride, act_stride, y + m * ldy, ldy,
                      columns);
      };
    };
    split_rows(M, call(multiply_panel<Form, 8>), call(multiply_panel<Form, 4>),
               call(multiply_panel<Form, 2>), call(multiply_panel<Form, 1>));
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
