// How half a tile (8 of its 16 rows) becomes eight vectors of bytes and its scales, for the AVX2
// column. Included by its .cc files alone; everything has internal linkage. DESIGN: maddubs adds
// two u8*s8 products in int16 and saturates, so each width gets the form that cannot: 4-bit quants:
// 8 steps of 2*15*127 fit (30480); 5-bit: 4 steps (31496); 6-bit: 2 steps (32004); signed bytes:
// |w| * sign(a, w), 1 step of 2*128*127 (32512).
#pragma once

#include <immintrin.h>
#include <string.h>

#include "kernels/act_block.h"
#include "kernels/tile_layout.h"

namespace tandem {
namespace {

#define TANDEM_INLINE static inline __attribute__((always_inline))

struct Block256 {
  __m256i q[8];   // unsigned bytes, or signed (kIsSigned)
  __m256 scale;   // of all values, or of the first 16
  __m256 scale2;  // kIsSplit: of the last 16
  __m256 min;     // added to each value; kIsSplit: minus 1/32 of it, for the first 16
  __m256 min2;
};

TANDEM_INLINE __m256 load_half8(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}
TANDEM_INLINE __m256i load_i8x8(const uint8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
TANDEM_INLINE __m256i load256(const uint8_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
TANDEM_INLINE __m256i or_bits(__m256i a, __m256i bits, __m256i mask) {
  return _mm256_or_si256(a, _mm256_and_si256(bits, mask));
}

// The quants of one half tile; p points to that half of the first vector.
template <int kBits>
TANDEM_INLINE void quants(const uint8_t* p, __m256i q[8]) {
  if constexpr (kBits == 8) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) q[i] = load256(p + 64 * i);
    return;
  }
  const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256i x = load256(p + 64 * i);
    q[i] = _mm256_and_si256(x, low);
    q[i + 4] = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
  }
  if constexpr (kBits == 5) {
    const __m256i h = load256(p + 256), bit = _mm256_set1_epi8(16);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m256i at = j < 4 ? _mm256_slli_epi16(h, 4 - j) : _mm256_srli_epi16(h, j - 4);
      q[j] = or_bits(q[j], at, bit);
    }
  }
  if constexpr (kBits == 6) {
    const __m256i bits = _mm256_set1_epi8(0x30);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m256i h = load256(p + 256 + 64 * (j / 4));
      const int shift = 4 - 2 * (j % 4);
      q[j] = or_bits(q[j], shift >= 0 ? _mm256_slli_epi16(h, shift) : _mm256_srli_epi16(h, -shift),
                     bits);
    }
  }
}

// All bits of the dwords whose row's bit is set in `rows`.
TANDEM_INLINE __m256i row_mask(uint8_t rows) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(rows), bit), bit);
}

// Signed, of two planes of nibbles: high halves at p, low ones at r; rows that are not raised have 8 more to take off.
TANDEM_INLINE void quants_nested(const uint8_t* p, const uint8_t* r, __m256i raised, __m256i q[8]) {
  const __m256i more = _mm256_andnot_si256(raised, _mm256_set1_epi8(8));
  const __m256i low = _mm256_set1_epi8(15), flip = _mm256_set1_epi8(static_cast<char>(0x88));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256i high = _mm256_xor_si256(load256(p + 64 * i), flip), rest = load256(r + 64 * i);
    const __m256i four = _mm256_slli_epi16(high, 4), last = _mm256_srli_epi16(rest, 4);
    q[i] = _mm256_sub_epi8(or_bits(_mm256_andnot_si256(low, four), rest, low), more);
    q[i + 4] = _mm256_sub_epi8(or_bits(_mm256_andnot_si256(low, high), last, low), more);
  }
}

template <GgmlType kType>
struct Form256 {
  static constexpr TileShape kShape = *tile_shape(kType);
  static constexpr bool kIsTable =
      kType == GgmlType::kIQ4_NL || kType == GgmlType::kIQ4_XS || kType == GgmlType::kMXFP4;
  static constexpr bool kIsSigned = kIsTable || kType == GgmlType::kQ8_0 || is_nested(kShape);
  // Subtracted from unsigned quants. Q3_K's 4 is raised to Q6_K's 32: one pair of sums serves both.
  static constexpr int kOffset = kIsSigned ? 0 : kType == GgmlType::kQ3_K ? 32 : kShape.offset;
  static constexpr bool kIsSplit = kShape.n_scales == 2;
  static constexpr bool kIsLean = kType == GgmlType::kQ8_0Lean;
  static constexpr bool kHasMin = kShape.scale == TileScale::kHalfMin || kShape.n_mins > 0 || kIsLean;
  // maddubs results that may be added in int16 before widening.
  static constexpr int kSteps = kIsSigned                                      ? 1
                                : kShape.bits == 6 || kType == GgmlType::kQ3_K ? 2
                                : kShape.bits == 5                             ? 4
                                : kIsSplit                                     ? 4
                                                                               : 8;

  // Block b, rows 8 * half .. 8 * half + 7.
  static inline __attribute__((always_inline)) void load(const TilePlanes& tile, int64_t b, int half,
                                                         Block256* w) {
    const uint8_t* group = tile.first + b / kShape.group * group_bytes(kShape);
    const int i = static_cast<int>(b % kShape.group);
    const uint8_t* p = group + header_bytes(kShape) + i * block_bytes(kShape) + 32 * half;
    if constexpr (is_nested(kShape)) {
      quants_nested(p, tile.residual + b * kResidualBlockBytes + 32 * half, row_mask(tile.raised[2 * b + half]), w->q);
    } else {
      quants<kShape.bits>(p, w->q);
    }
    if constexpr (kIsTable) {
      const int8_t* table = kType == GgmlType::kMXFP4 ? kMxfp4Values : kIq4Values;
      const __m256i lut =
          _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) w->q[j] = _mm256_shuffle_epi8(lut, w->q[j]);
    } else if constexpr (kType == GgmlType::kQ8_0) {
      const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) w->q[j] = _mm256_xor_si256(w->q[j], flip);
    } else if constexpr (kType == GgmlType::kQ3_K) {
      const __m256i raise = _mm256_set1_epi8(28);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) w->q[j] = _mm256_add_epi8(w->q[j], raise);
    }
    load_scales(group, i, half, w);
    if constexpr (kIsLean) {
      const __m256 raised = _mm256_castsi256_ps(row_mask(tile.raised[2 * b + half]));
      w->min = _mm256_and_ps(raised, _mm256_mul_ps(w->scale, _mm256_set1_ps(kLeanRaisedMin)));
      w->scale = _mm256_mul_ps(w->scale, _mm256_set1_ps(kLeanScale));
    }
  }

  static inline __attribute__((always_inline)) void load_scales(const uint8_t* group, int i,
                                                                int half, Block256* w) {
    const uint8_t* halfs = group + 16 * half;
    if constexpr (kShape.scale == TileScale::kHalf) {
      w->scale = load_half8(halfs + 32 * i);
    } else if constexpr (kShape.scale == TileScale::kFloat) {
      w->scale = _mm256_load_ps(reinterpret_cast<const float*>(group) + 8 * half);
    } else if constexpr (kShape.scale == TileScale::kHalfMin) {
      w->scale = load_half8(halfs);
      w->min = load_half8(halfs + 32);
    } else {
      const uint8_t* scales = group + 64 + 16 * kShape.n_scales * i + 8 * half;
      const uint8_t* mins =
          group + 64 + 16 * (kShape.group * kShape.n_scales + kShape.n_mins * i) + 8 * half;
      const __m256 d = load_half8(halfs);
      w->scale = _mm256_mul_ps(d, _mm256_cvtepi32_ps(load_i8x8(scales)));
      if constexpr (kIsSplit)
        w->scale2 = _mm256_mul_ps(d, _mm256_cvtepi32_ps(load_i8x8(scales + 16)));
      if constexpr (kHasMin) {
        // Two minimums multiply -32 * sum of their half, one the sum itself.
        const __m256 dmin =
            _mm256_mul_ps(load_half8(halfs + 32), _mm256_set1_ps(kIsSplit ? 1.0f / 32 : -1.0f));
        w->min = _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(load_i8x8(mins)));
        if constexpr (kIsSplit)
          w->min2 = _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(load_i8x8(mins + 16)));
      }
    }
  }

  // The 8 rows' weights at k = 4 * j + t, exactly as dequantize_row gives them.
  static inline __attribute__((always_inline)) __m256 weight(const Block256& w, int j, int t) {
    __m256i level = _mm256_slli_epi32(w.q[j], 24 - 8 * t);
    level = kIsSigned ? _mm256_srai_epi32(level, 24) : _mm256_srli_epi32(level, 24);
    level = _mm256_sub_epi32(level, _mm256_set1_epi32(kOffset));
    const __m256 scale = kIsSplit && j >= 4 ? w.scale2 : w.scale;
    const __m256 product = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(level));
    if constexpr (!kHasMin) return product;
    if constexpr (!kIsSplit) return _mm256_add_ps(product, w.min);
    return _mm256_add_ps(product, _mm256_mul_ps(j < 4 ? w.min : w.min2, _mm256_set1_ps(-32.0f)));
  }
};

TANDEM_INLINE __m256i broadcast4(const int8_t* p) {
  int32_t x;
  memcpy(&x, p, 4);
  return _mm256_set1_epi32(x);
}

// Stores the first `columns` (0..8) lanes.
TANDEM_INLINE void store_columns(float* y, int columns, __m256 v) {
  const __m256i lanes =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(columns), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  _mm256_maskstore_ps(y, lanes, v);
}

// How many of the 8 columns of a half tile exist.
TANDEM_INLINE int columns_of(int64_t n_rows, int64_t tile, int half) {
  const int64_t left = n_rows - tile * kTileRows - 8 * half;
  return static_cast<int>(left < 0 ? 0 : left > 8 ? 8 : left);
}

}  // namespace
}  // namespace tandem
