// Matmul of exact weights with NEON: the reference mode (float activations, every type), and F16, BF16 and F32
// weights with quantized activations. One output element is one chain of fma over ascending k.
#include "kernels/columns.h"
#include "kernels/forms_neon.h"

namespace tandem::neon {
namespace {

constexpr int64_t kRowsInCache = 32;

// Weights of a block of 32 k, half a tile (8 rows) each.
struct alignas(64) FloatBlock {
  float w[QK][8];
};

template <GgmlType kType>
TANDEM_INLINE float32x4_t load_plain4(const uint8_t* p) {
  if constexpr (kType == GgmlType::kF32) return vld1q_f32(reinterpret_cast<const float*>(p));
  if constexpr (kType == GgmlType::kF16) return load_half4(p);
  return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

template <GgmlType kType>
TANDEM_INLINE void load_floats(const TilePlanes& tile, int64_t b, int half, FloatBlock* out) {
  constexpr TileShape kShape = *tile_shape(kType);
  if constexpr (is_plain(kShape)) {
    constexpr int kSize = kShape.bits / 8;
    const uint8_t* p = tile.first + (b * QK * kTileRows + 8 * half) * kSize;
    for (int k = 0; k < QK; ++k, p += kTileRows * kSize) {
      vst1q_f32(out->w[k], load_plain4<kType>(p));
      vst1q_f32(out->w[k] + 4, load_plain4<kType>(p + 4 * kSize));
    }
  } else {
    using Form = Form128<kType>;
    for (int part = 0; part < 2; ++part) {
      Block128 w;
      Form::load(tile, b, 2 * half + part, &w);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        float* row = out->w[4 * j] + 4 * part;
        vst1q_f32(row, Form::template weight<0>(w, j));
        vst1q_f32(row + 8, Form::template weight<1>(w, j));
        vst1q_f32(row + 16, Form::template weight<2>(w, j));
        vst1q_f32(row + 24, Form::template weight<3>(w, j));
      }
    }
  }
}

// acc[m] += the 8 rows' weights at one k, times lane kLane of x[m].
template <int kLane, int kRows>
TANDEM_INLINE void add_products(const float* w, const float32x4_t* x, float32x4_t (*acc)[2]) {
  const float32x4_t low = vld1q_f32(w), high = vld1q_f32(w + 4);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    acc[m][0] = vfmaq_laneq_f32(acc[m][0], low, x[m], kLane);
    acc[m][1] = vfmaq_laneq_f32(acc[m][1], high, x[m], kLane);
  }
}

// A block of 32 k; row m of x at x + m * ldx.
template <int kRows>
TANDEM_INLINE void add_block(const FloatBlock& block, const float* x, int64_t ldx, float32x4_t (*acc)[2]) {
  for (int k = 0; k < QK; k += 4) {
    float32x4_t four[kRows];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) four[m] = vld1q_f32(x + m * ldx + k);
    add_products<0, kRows>(block.w[k], four, acc);
    add_products<1, kRows>(block.w[k + 1], four, acc);
    add_products<2, kRows>(block.w[k + 2], four, acc);
    add_products<3, kRows>(block.w[k + 3], four, acc);
  }
}

template <int kRows>
TANDEM_INLINE void store_rows(float* y, int64_t ldy, int columns, const float32x4_t (*acc)[2]) {
  for (int m = 0; m < kRows; ++m) {
    store_columns(y + m * ldy, columns, acc[m][0]);
    if (columns > 4) store_columns(y + m * ldy + 4, columns - 4, acc[m][1]);
  }
}

// Float activations of kRows rows.
template <GgmlType kType, int kRows>
void multiply_f32(const TilePlanes& tile, int64_t n_blocks, int half, const float* x, int64_t ldx, float* y,
                  int64_t ldy, int columns) {
  float32x4_t acc[kRows][2];
  for (int m = 0; m < kRows; ++m) acc[m][0] = acc[m][1] = vdupq_n_f32(0);
  FloatBlock block;
  for (int64_t b = 0; b < n_blocks; ++b) {
    load_floats<kType>(tile, b, half, &block);
    add_block<kRows>(block, x + b * QK, ldx, acc);
  }
  store_rows<kRows>(y, ldy, columns, acc);
}

TANDEM_INLINE void dequantize_act(const ActBlock& a, float* out) {
  for (int h = 0; h < QK; h += 8) {
    const int8x8_t fine_bytes = vld1_s8(a.fine + h % 16);
    const int16x8_t fine = h < 16 ? vmovl_s8(fine_bytes) : vshll_n_s8(fine_bytes, 4);
    const int16x8_t whole = vaddq_s16(vshll_n_s8(vld1_s8(a.coarse + h), 8), fine);
    vst1q_f32(out + h, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(whole))), a.d));
    vst1q_f32(out + h + 4, vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(whole)), a.d));
  }
}

// Quantized activations: as floats, then the same chain of fma.
template <GgmlType kType, int kRows>
void multiply_act(const TilePlanes& tile, int64_t n_blocks, int half, const uint8_t* act, size_t act_stride, float* y,
                  int64_t ldy, int columns) {
  float32x4_t acc[kRows][2];
  for (int m = 0; m < kRows; ++m) acc[m][0] = acc[m][1] = vdupq_n_f32(0);
  FloatBlock block;
  alignas(64) float x[kRows][QK];
  for (int64_t b = 0; b < n_blocks; ++b) {
    load_floats<kType>(tile, b, half, &block);
    for (int m = 0; m < kRows; ++m) {
      dequantize_act(reinterpret_cast<const ActBlock*>(act + static_cast<size_t>(m) * act_stride)[b], x[m]);
    }
    add_block<kRows>(block, x[0], QK, acc);
  }
  store_rows<kRows>(y, ldy, columns, acc);
}

// Calls rows8(m), then rows4, rows2, rows1 for the rest of [begin, end).
template <typename F8, typename F4, typename F2, typename F1>
TANDEM_INLINE void split_rows(int64_t begin, int64_t end, F8 rows8, F4 rows4, F2 rows2, F1 rows1) {
  int64_t m = begin;
  for (; end - m >= 8; m += 8) rows8(m);
  if (end - m >= 4) rows4(m), m += 4;
  if (end - m >= 2) rows2(m), m += 2;
  if (end - m >= 1) rows1(m);
}

// Half tiles in ascending order under each run of activation rows: multiply(half tile, first row, end of rows).
template <typename Multiply>
TANDEM_INLINE void for_half_tiles(int64_t tile_begin, int64_t tile_end, int64_t M, Multiply multiply) {
  for (int64_t m0 = 0; m0 < M; m0 += kRowsInCache) {
    const int64_t m_end = M < m0 + kRowsInCache ? M : m0 + kRowsInCache;
    for (int64_t part = 2 * tile_begin; part < 2 * tile_end; ++part) multiply(part, m0, m_end);
  }
}

int columns_of_half(int64_t n_rows, int64_t part) {
  const int64_t left = n_rows - 8 * part;
  return static_cast<int>(left < 0 ? 0 : left > 8 ? 8 : left);
}

template <GgmlType kType>
void matmul_f32_form(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x, int64_t ldx,
                     int64_t M, float* y, int64_t ldy) {
  for_half_tiles(tile_begin, tile_end, M, [&](int64_t part, int64_t begin, int64_t end) {
    const TilePlanes tile = tile_planes(*tile_shape(kType), w, part / 2);
    const auto call = [&](auto multiply) {
      return [=, &w](int64_t m) {
        multiply(tile, w.n_cols / QK, static_cast<int>(part % 2), x + m * ldx, ldx, y + part * 8 + m * ldy, ldy,
                 columns_of_half(w.n_rows, part));
      };
    };
    split_rows(begin, end, call(multiply_f32<kType, 8>), call(multiply_f32<kType, 4>),
               call(multiply_f32<kType, 2>), call(multiply_f32<kType, 1>));
  });
}

template <GgmlType kType>
void matmul_act_form(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act, int64_t M,
                     float* y, int64_t ldy) {
  const size_t stride = act_row_bytes_of(w.n_cols);
  for_half_tiles(tile_begin, tile_end, M, [&](int64_t part, int64_t begin, int64_t end) {
    const TilePlanes tile = tile_planes(*tile_shape(kType), w, part / 2);
    const auto call = [&](auto multiply) {
      return [=, &w](int64_t m) {
        multiply(tile, w.n_cols / QK, static_cast<int>(part % 2), act + static_cast<size_t>(m) * stride, stride,
                 y + part * 8 + m * ldy, ldy, columns_of_half(w.n_rows, part));
      };
    };
    split_rows(begin, end, call(multiply_act<kType, 8>), call(multiply_act<kType, 4>),
               call(multiply_act<kType, 2>), call(multiply_act<kType, 1>));
  });
}

}  // namespace

void matmul_plain(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act, int64_t M,
                  float* y, int64_t ldy) {
  if (w.type == GgmlType::kF16) {
    matmul_act_form<GgmlType::kF16>(w, tile_begin, tile_end, act, M, y, ldy);
  } else if (w.type == GgmlType::kBF16) {
    matmul_act_form<GgmlType::kBF16>(w, tile_begin, tile_end, act, M, y, ldy);
  } else {
    matmul_act_form<GgmlType::kF32>(w, tile_begin, tile_end, act, M, y, ldy);
  }
}

void matmul_f32(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x, int64_t ldx, int64_t M,
                float* y, int64_t ldy) {
  switch (w.type) {
#define TANDEM_CASE(type) \
  case GgmlType::type:    \
    return matmul_f32_form<GgmlType::type>(w, tile_begin, tile_end, x, ldx, M, y, ldy);
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
      return matmul_dense(w, tile_begin, tile_end, x, ldx, M, y, ldy);
    TANDEM_TILED_TYPES(TANDEM_CASE)
#undef TANDEM_CASE
    default:
      return;  // packed_bytes refused every other type
  }
}

}  // namespace tandem::neon
