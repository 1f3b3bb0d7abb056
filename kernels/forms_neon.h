// How a quarter of a tile (4 of its 16 rows) becomes eight vectors of signed bytes and its scales, for the NEON
// columns. Included by their .cc files alone; everything has internal linkage. DESIGN: dot products here are
// signed, so offsets are subtracted from the quants once a block (the sums of ActBlock that x86 owes them
// through stay unread), and every quant fits a signed byte.
#pragma once

#include <arm_neon.h>
#include <string.h>

#include "kernels/act_block.h"
#include "kernels/tile_layout.h"

namespace tandem {
namespace {

#define TANDEM_INLINE static inline __attribute__((always_inline))

constexpr int kQuarterRows = 4;
constexpr int kQuarters = kTileRows / kQuarterRows;

struct Block128 {
  int8x16_t q[8];      // dword r of vector j: row r, k = 4j..4j+3
  float32x4_t scale;   // of all values, or of the first 16
  float32x4_t scale2;  // kIsSplit: of the last 16
  float32x4_t min;     // added to each value; kIsSplit: minus 1/32 of it, for the first 16
  float32x4_t min2;
};

TANDEM_INLINE float32x4_t load_half4(const uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
// Four bytes as floats.
TANDEM_INLINE float32x4_t load_i8x4(const uint8_t* p) {
  uint32_t bytes;
  memcpy(&bytes, p, sizeof bytes);
  const int16x8_t words = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(bytes)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
}
TANDEM_INLINE uint8x16_t or_bits(uint8x16_t a, uint8x16_t bits, uint8x16_t mask) {
  return vorrq_u8(a, vandq_u8(bits, mask));
}
// x << n, or x >> -n.
TANDEM_INLINE uint8x16_t shift(uint8x16_t x, int n) {
  return vshlq_u8(x, vdupq_n_s8(static_cast<int8_t>(n)));
}

// The unsigned quants of a quarter; p points to that quarter of the first vector.
template <int kBits>
TANDEM_INLINE void quants(const uint8_t* p, uint8x16_t q[8]) {
  if constexpr (kBits == 8) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) q[i] = vld1q_u8(p + 64 * i);
    return;
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t x = vld1q_u8(p + 64 * i);
    q[i] = vandq_u8(x, vdupq_n_u8(15));
    q[i + 4] = vshrq_n_u8(x, 4);
  }
  if constexpr (kBits == 5) {
    const uint8x16_t h = vld1q_u8(p + 256);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) q[j] = or_bits(q[j], shift(h, 4 - j), vdupq_n_u8(16));
  }
  if constexpr (kBits == 6) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const uint8x16_t h = vld1q_u8(p + 256 + 64 * (j / 4));
      q[j] = or_bits(q[j], shift(h, 4 - 2 * (j % 4)), vdupq_n_u8(0x30));
    }
  }
}

// Of two planes of nibbles: high halves at p, low ones at r.
TANDEM_INLINE void quants_nested(const uint8_t* p, const uint8_t* r, uint8x16_t q[8]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t high = vld1q_u8(p + 64 * i), rest = vld1q_u8(r + 64 * i);
    q[i] = vsliq_n_u8(rest, high, 4);
    q[i + 4] = vsriq_n_u8(high, rest, 4);
  }
}

// All bits of the dwords whose row (bit 4 * quarter and up) is set in the 16 rows' bits.
TANDEM_INLINE uint32x4_t row_mask(const uint8_t* rows, int quarter) {
  const uint32x4_t bit = vshlq_u32(vdupq_n_u32(1), vaddq_s32(vdupq_n_s32(4 * (quarter % 2)), int32x4_t{0, 1, 2, 3}));
  return vtstq_u32(vdupq_n_u32(rows[quarter / 2]), bit);
}

template <GgmlType kType>
struct Form128 {
  static constexpr TileShape kShape = *tile_shape(kType);
  static constexpr bool kIsTable =
      kType == GgmlType::kIQ4_NL || kType == GgmlType::kIQ4_XS || kType == GgmlType::kMXFP4;
  static constexpr bool kIsSplit = kShape.n_scales == 2;
  static constexpr bool kIsLean = kType == GgmlType::kQ8_0Lean;
  static constexpr bool kHasMin = kShape.scale == TileScale::kHalfMin || kShape.n_mins > 0 || kIsLean;
  // Largest magnitude of a signed quant.
  static constexpr int kLargest =
      kIsTable || kShape.bits == 8 ? 128 : kShape.bits == 6 ? 32 : kShape.bits == 5 ? 31 : 15;

  // Block b, rows 4 * quarter .. 4 * quarter + 3.
  static inline __attribute__((always_inline)) void load(const TilePlanes& tile, int64_t b, int quarter,
                                                         Block128* w) {
    const uint8_t* group = tile.first + b / kShape.group * group_bytes(kShape);
    const int i = static_cast<int>(b % kShape.group);
    const uint8_t* p = group + header_bytes(kShape) + i * block_bytes(kShape) + 16 * quarter;
    uint8x16_t q[8];
    if constexpr (is_nested(kShape)) {
      quants_nested(p, tile.residual + b * kResidualBlockBytes + 16 * quarter, q);
    } else {
      quants<kShape.bits>(p, q);
    }
    const int8x16_t table = vld1q_s8(kType == GgmlType::kMXFP4 ? kMxfp4Values : kIq4Values);
    uint8x16_t offset = vdupq_n_u8(static_cast<uint8_t>(kShape.offset));
    if constexpr (is_nested(kShape))
      offset = vbslq_u8(vreinterpretq_u8_u32(row_mask(tile.raised + 2 * b, quarter)),
                        vdupq_n_u8(kRaisedOffset), vdupq_n_u8(kNestedOffset));
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      if constexpr (kIsTable) {
        w->q[j] = vqtbl1q_s8(table, q[j]);
      } else {
        w->q[j] = vreinterpretq_s8_u8(kShape.offset ? vsubq_u8(q[j], offset) : q[j]);
      }
    }
    load_scales(group, i, quarter, w);
    if constexpr (kIsLean) {
      const uint32x4_t raised = row_mask(tile.raised + 2 * b, quarter);
      w->min = vmulq_f32(w->scale, vbslq_f32(raised, vdupq_n_f32(kLeanRaisedMin), vdupq_n_f32(0)));
      w->scale = vmulq_n_f32(w->scale, kLeanScale);
    }
  }

  static inline __attribute__((always_inline)) void load_scales(const uint8_t* group, int i, int quarter,
                                                                Block128* w) {
    const uint8_t* halfs = group + 8 * quarter;
    if constexpr (kShape.scale == TileScale::kHalf) {
      w->scale = load_half4(halfs + 32 * i);
    } else if constexpr (kShape.scale == TileScale::kFloat) {
      w->scale = vld1q_f32(reinterpret_cast<const float*>(group) + 4 * quarter);
    } else if constexpr (kShape.scale == TileScale::kHalfMin) {
      w->scale = load_half4(halfs);
      w->min = load_half4(halfs + 32);
    } else {
      const uint8_t* scales = group + 64 + 16 * kShape.n_scales * i + 4 * quarter;
      const uint8_t* mins =
          group + 64 + 16 * (kShape.group * kShape.n_scales + kShape.n_mins * i) + 4 * quarter;
      const float32x4_t d = load_half4(halfs);
      w->scale = vmulq_f32(d, load_i8x4(scales));
      if constexpr (kIsSplit) w->scale2 = vmulq_f32(d, load_i8x4(scales + 16));
      if constexpr (kHasMin) {
        // Two minimums multiply -32 * sum of their half, one the sum itself.
        const float32x4_t dmin = vmulq_n_f32(load_half4(halfs + 32), kIsSplit ? 1.0f / 32 : -1.0f);
        w->min = vmulq_f32(dmin, load_i8x4(mins));
        if constexpr (kIsSplit) w->min2 = vmulq_f32(dmin, load_i8x4(mins + 16));
      }
    }
  }

  // The 4 rows' weights at k = 4 * j + t, exactly as dequantize_row gives them.
  template <int t>
  static inline __attribute__((always_inline)) float32x4_t weight(const Block128& w, int j) {
    const int32x4_t level = vshrq_n_s32(vshlq_n_s32(vreinterpretq_s32_s8(w.q[j]), 24 - 8 * t), 24);
    const float32x4_t scale = kIsSplit && j >= 4 ? w.scale2 : w.scale;
    const float32x4_t product = vmulq_f32(scale, vcvtq_f32_s32(level));
    if constexpr (!kHasMin) return product;
    if constexpr (!kIsSplit) return vaddq_f32(product, w.min);
    return vaddq_f32(product, vmulq_n_f32(j < 4 ? w.min : w.min2, -32.0f));
  }
};

// Stores the first `columns` (0..4) lanes.
TANDEM_INLINE void store_columns(float* y, int columns, float32x4_t v) {
  if (columns >= 4) return vst1q_f32(y, v);
  float lanes[4];
  vst1q_f32(lanes, v);
  for (int i = 0; i < columns; ++i) y[i] = lanes[i];
}

// How many of the 4 columns of a quarter tile exist.
TANDEM_INLINE int columns_of(int64_t n_rows, int64_t tile, int quarter) {
  const int64_t left = n_rows - tile * kTileRows - kQuarterRows * quarter;
  return static_cast<int>(left < 0 ? 0 : left > 4 ? 4 : left);
}

}  // namespace
}  // namespace tandem
