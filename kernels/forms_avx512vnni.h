// How each tile form becomes eight vectors of unsigned bytes (16 rows x 4 k-values) and its scales,
// for the AVX-512 VNNI column. Included by its .cc files alone; everything has internal linkage.
#pragma once

#include <immintrin.h>
#include <string.h>

#include "kernels/act_block.h"
#include "kernels/tile_layout.h"

namespace tandem {
namespace {

#define TANDEM_INLINE static inline __attribute__((always_inline))

struct Block512 {
  __m512i q[12];  // unsigned bytes; the offset is owed through ActBlock::c*. kIsNibble: then the
                  // packed vectors, q[i] + 16 * q[i + 4]
  __m512 scale;   // of all values, or of the first 16
  __m512 scale2;  // kIsSplit: of the last 16
  __m512 min;     // added to each value; kIsSplit: minus 1/32 of it, for the first 16
  __m512 min2;
};

TANDEM_INLINE __m512 load_half16(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
TANDEM_INLINE __m512i load_i8x16(const uint8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}
TANDEM_INLINE __m512i load512(const uint8_t* p) { return _mm512_load_si512(p); }

// The quants of a block, by stored width.
TANDEM_INLINE void quants4(const uint8_t* p, __m512i q[8]) {
  const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i x = load512(p + 64 * i);
    q[i] = _mm512_and_si512(x, low);
    q[i + 4] = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
  }
}

// (a & mask) | b
TANDEM_INLINE __m512i and_or(__m512i a, __m512i mask, __m512i b) {
  return _mm512_ternarylogic_epi64(a, mask, b, 0xea);
}

TANDEM_INLINE void quants5(const uint8_t* p, __m512i q[8]) {
  quants4(p, q);
  const __m512i bit = _mm512_set1_epi8(16);
  const __m512i h = load512(p + 256);
  q[0] = and_or(_mm512_slli_epi16(h, 4), bit, q[0]);
  q[1] = and_or(_mm512_slli_epi16(h, 3), bit, q[1]);
  q[2] = and_or(_mm512_slli_epi16(h, 2), bit, q[2]);
  q[3] = and_or(_mm512_slli_epi16(h, 1), bit, q[3]);
  q[4] = and_or(h, bit, q[4]);
  q[5] = and_or(_mm512_srli_epi16(h, 1), bit, q[5]);
  q[6] = and_or(_mm512_srli_epi16(h, 2), bit, q[6]);
  q[7] = and_or(_mm512_srli_epi16(h, 3), bit, q[7]);
}

TANDEM_INLINE void quants6(const uint8_t* p, __m512i q[8]) {
  quants4(p, q);
  const __m512i bits = _mm512_set1_epi8(0x30);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512i h = load512(p + 256 + 64 * i);
    __m512i* v = q + 4 * i;
    v[0] = and_or(_mm512_slli_epi16(h, 4), bits, v[0]);
    v[1] = and_or(_mm512_slli_epi16(h, 2), bits, v[1]);
    v[2] = and_or(h, bits, v[2]);
    v[3] = and_or(_mm512_srli_epi16(h, 2), bits, v[3]);
  }
}

TANDEM_INLINE void quants8(const uint8_t* p, __m512i q[8]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) q[i] = load512(p + 64 * i);
}

// Of two planes of nibbles: high halves at p, low ones at r; rows that are not raised have 8 more to take off.
TANDEM_INLINE void quants_nested(const uint8_t* p, const uint8_t* r, __mmask16 raised, __m512i q[8]) {
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i more = _mm512_maskz_set1_epi32(static_cast<__mmask16>(~raised), 0x08080808);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i high = load512(p + 64 * i), rest = load512(r + 64 * i);
    // low ? rest : high
    q[i] = _mm512_sub_epi8(_mm512_ternarylogic_epi64(low, rest, _mm512_slli_epi16(high, 4), 0xca), more);
    q[i + 4] = _mm512_sub_epi8(_mm512_ternarylogic_epi64(low, _mm512_srli_epi16(rest, 4), high, 0xca), more);
  }
}

// Table indices to table values + 128.
TANDEM_INLINE void quants_table(const uint8_t* p, const int8_t table[16], __m512i q[8]) {
  const __m128i t = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)),
                                  _mm_set1_epi8(static_cast<char>(0x80)));
  const __m512i lut = _mm512_broadcast_i32x4(t);
  quants4(p, q);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) q[i] = _mm512_shuffle_epi8(lut, q[i]);
}

template <int kBits>
TANDEM_INLINE void quants(const uint8_t* p, __m512i q[8]) {
  if constexpr (kBits == 4) quants4(p, q);
  if constexpr (kBits == 5) quants5(p, q);
  if constexpr (kBits == 6) quants6(p, q);
  if constexpr (kBits == 8) quants8(p, q);
}

// A form: `load` block b of a tile; kOffset tells which ActBlock sum starts the accumulator.
template <GgmlType kType>
struct Form512 {
  static constexpr TileShape kShape = *tile_shape(kType);
  static constexpr bool kIsTable =
      kType == GgmlType::kIQ4_NL || kType == GgmlType::kIQ4_XS || kType == GgmlType::kMXFP4;
  // Q3_K's offset of 4 is raised to Q6_K's 32, so that one pair of sums serves both.
  static constexpr int kOffset = kIsTable ? 128 : kType == GgmlType::kQ3_K ? 32 : kShape.offset;
  static constexpr bool kIsSplit = kShape.n_scales == 2;
  static constexpr bool kIsLean = kType == GgmlType::kQ8_0Lean;
  static constexpr bool kHasMin = kShape.scale == TileScale::kHalfMin || kShape.n_mins > 0 || kIsLean;
  // The packed bytes are the quants themselves, and the block has one scale.
  static constexpr bool kIsNibble =
      kShape.bits == 4 && !kIsTable && !kIsSplit && kType != GgmlType::kQ3_K;

  static inline __attribute__((always_inline)) void load(const TilePlanes& tile, int64_t b,
                                                         Block512* w) {
    const uint8_t* group = tile.first + b / kShape.group * group_bytes(kShape);
    const int i = static_cast<int>(b % kShape.group);
    const uint8_t* p = group + header_bytes(kShape) + i * block_bytes(kShape);
    if constexpr (kIsNibble) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) w->q[8 + j] = load512(p + 64 * j);
    }
    if constexpr (kType == GgmlType::kMXFP4) {
      quants_table(p, kMxfp4Values, w->q);
    } else if constexpr (kIsTable) {
      quants_table(p, kIq4Values, w->q);
    } else if constexpr (is_nested(kShape)) {
      quants_nested(p, tile.residual + b * kResidualBlockBytes, raised_rows(tile, b), w->q);
    } else {
      quants<kShape.bits>(p, w->q);
    }
    if constexpr (kType == GgmlType::kQ3_K) {
      const __m512i raise = _mm512_set1_epi8(28);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) w->q[j] = _mm512_add_epi8(w->q[j], raise);
    }
    load_scales(group, i, w);
    if constexpr (kIsLean) {
      w->min = _mm512_maskz_mul_ps(raised_rows(tile, b), w->scale, _mm512_set1_ps(kLeanRaisedMin));
      w->scale = _mm512_mul_ps(w->scale, _mm512_set1_ps(kLeanScale));
    }
  }

  static inline __attribute__((always_inline)) __mmask16 raised_rows(const TilePlanes& tile, int64_t b) {
    uint16_t rows;
    memcpy(&rows, tile.raised + 2 * b, sizeof rows);
    return rows;
  }

  static inline __attribute__((always_inline)) void load_scales(const uint8_t* group, int i,
                                                                Block512* w) {
    if constexpr (kShape.scale == TileScale::kHalf) {
      w->scale = load_half16(group + 32 * i);
    } else if constexpr (kShape.scale == TileScale::kFloat) {
      w->scale = _mm512_load_ps(reinterpret_cast<const float*>(group));
    } else if constexpr (kShape.scale == TileScale::kHalfMin) {
      w->scale = load_half16(group);
      w->min = load_half16(group + 32);
    } else {
      const uint8_t* scales = group + 64 + 16 * kShape.n_scales * i;
      const uint8_t* mins = group + 64 + 16 * (kShape.group * kShape.n_scales + kShape.n_mins * i);
      const __m512 d = load_half16(group);
      w->scale = _mm512_mul_ps(d, _mm512_cvtepi32_ps(load_i8x16(scales)));
      if constexpr (kIsSplit)
        w->scale2 = _mm512_mul_ps(d, _mm512_cvtepi32_ps(load_i8x16(scales + 16)));
      if constexpr (kHasMin) {
        // Two minimums multiply -32 * sum of their half, one the sum itself.
        const __m512 dmin =
            _mm512_mul_ps(load_half16(group + 32), _mm512_set1_ps(kIsSplit ? 1.0f / 32 : -1.0f));
        w->min = _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(load_i8x16(mins)));
        if constexpr (kIsSplit)
          w->min2 = _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(load_i8x16(mins + 16)));
      }
    }
  }

  // The 16 rows' weights at k = 4 * j + t, exactly as dequantize_row gives them.
  static inline __attribute__((always_inline)) __m512 weight(const Block512& w, int j, int t) {
    const __m512i byte = _mm512_and_si512(_mm512_srli_epi32(w.q[j], static_cast<unsigned>(8 * t)),
                                          _mm512_set1_epi32(255));
    __m512i level = _mm512_sub_epi32(byte, _mm512_set1_epi32(kOffset));
    const __m512 scale = kIsSplit && j >= 4 ? w.scale2 : w.scale;
    const __m512 product = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(level));
    if constexpr (!kHasMin) return product;
    if constexpr (!kIsSplit) return _mm512_add_ps(product, w.min);
    return _mm512_add_ps(product, _mm512_mul_ps(j < 4 ? w.min : w.min2, _mm512_set1_ps(-32.0f)));
  }
};

TANDEM_INLINE __m512i broadcast4(const int8_t* p) {
  int32_t x;
  memcpy(&x, p, 4);
  return _mm512_set1_epi32(x);
}

}  // namespace
}  // namespace tandem
