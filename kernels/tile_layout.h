// The packed form that the SIMD columns share: tiles of 16 rows, so that a 16-lane vector holds one
// value of 16 output features. A tile is a run of groups; a group is a header and `group` blocks of
// 32 k-values. DESIGN
// - Lossless and about as small as the file: scales stay half precision, super-block scales stay
// bytes.
// - Quants are unsigned; `offset` is subtracted in integers, through the sums in ActBlock.
// - Dword r of vector j holds row r, k = 4j..4j+3: the operand of a 4-way byte dot product.
//   4-bit: vector i (0..3) low nibbles are vector i, high nibbles vector i + 4 (as in GGUF's Q4_0).
//   5-bit: then one vector, bit j of each byte is the fifth bit of vector j.
//   6-bit: then two vectors, bits 2*(j%4) of vector j/4 are the top bits of vector j.
//   8-bit: vectors 0..7.
//   Nested (Q8_0's other form): a tile as of 4-bit, of each quant's high half, with the scales; behind
//   all tiles a bit a block, and then their residuals, blocks of 4-bit of the low halves. All together
//   are Q8_0's quants, without the residuals they are Q8_0's lean form, of half the bytes.
// - Everything starts on a 64-byte line.
#pragma once

#include "kernels/kernel_table.h"
#include "kernels/quant_blocks.h"

// The block-quantized types of the packed form, those of files and Q8_0's other two forms: one list for every switch that has a
// compiled form a type.
#define TANDEM_TILED_TYPES(X)                                                                \
  X(kQ4_0) X(kQ4_1) X(kQ5_0) X(kQ5_1) X(kQ8_0) X(kQ2_K) X(kQ3_K) X(kQ4_K) X(kQ5_K) X(kQ6_K) \
  X(kIQ4_NL) X(kIQ4_XS) X(kMXFP4)                                                            \
  X(kQ8_0Nested) X(kQ8_0Lean)

namespace tandem {

enum class TileScale : uint8_t {
  kHalf,       // header: half d[group][16]
  kHalfMin,    // header: half d[16], half m[16]; value = d*q + m
  kFloat,      // header: float d[16]
  kSuper,      // header: half d[16], half dmin[16], int8 scales[8][n_scales][16], uint8
               // mins[8][n_mins][16]
  kPlainHalf,  // no blocks: half [k][16]
  kPlainBf16,  // bfloat16 [k][16]
  kPlainFloat  // float [k][16]
};

struct TileShape {
  GgmlType type;
  TileScale scale;
  int group;     // blocks of 32 in a group
  int bits;      // of a stored quant
  int offset;    // value = (quant - offset) * scale; for kIq4 and kMxfp4 the quant is a table index
  int n_scales;  // a block and row (kSuper): 1, or 2 where 16 values share a scale
  int n_mins;
};

// Free static functions, not members: objects with ISA flags must not emit shared inline symbols.
static constexpr bool is_plain(const TileShape& s) { return s.scale >= TileScale::kPlainHalf; }
static constexpr bool is_nested(const TileShape& s) { return s.type == GgmlType::kQ8_0Nested; }
static constexpr int header_bytes(const TileShape& s) {
  return s.scale == TileScale::kSuper ? 64 + s.group * 16 * (s.n_scales + s.n_mins) : 64;
}
// In the first plane.
static constexpr int block_bytes(const TileShape& s) {
  return s.bits == 4 || is_nested(s) ? 256 : s.bits == 5 ? 320 : s.bits == 6 ? 384 : 512;
}
static constexpr int group_bytes(const TileShape& s) {
  return header_bytes(s) + s.group * block_bytes(s);
}

constexpr TileShape kTileShapes[] = {
    {GgmlType::kF32, TileScale::kPlainFloat, 1, 32, 0, 0, 0},
    {GgmlType::kF16, TileScale::kPlainHalf, 1, 16, 0, 0, 0},
    {GgmlType::kBF16, TileScale::kPlainBf16, 1, 16, 0, 0, 0},
    {GgmlType::kQ4_0, TileScale::kHalf, 2, 4, 8, 0, 0},
    {GgmlType::kQ4_1, TileScale::kHalfMin, 1, 4, 0, 0, 0},
    {GgmlType::kQ5_0, TileScale::kHalf, 2, 5, 16, 0, 0},
    {GgmlType::kQ5_1, TileScale::kHalfMin, 1, 5, 0, 0, 0},
    {GgmlType::kQ8_0, TileScale::kHalf, 2, 8, 128, 0, 0},
    {GgmlType::kQ2_K, TileScale::kSuper, 8, 4, 0, 2, 2},
    {GgmlType::kQ3_K, TileScale::kSuper, 8, 4, 4, 2, 0},
    {GgmlType::kQ4_K, TileScale::kSuper, 8, 4, 0, 1, 1},
    {GgmlType::kQ5_K, TileScale::kSuper, 8, 5, 0, 1, 1},
    {GgmlType::kQ6_K, TileScale::kSuper, 8, 6, 32, 2, 0},
    {GgmlType::kIQ4_NL, TileScale::kHalf, 2, 4, 0, 0, 0},
    {GgmlType::kIQ4_XS, TileScale::kSuper, 8, 4, 0, 1, 0},
    {GgmlType::kMXFP4, TileScale::kFloat, 1, 4, 0, 0, 0},
    {GgmlType::kQ8_0Nested, TileScale::kHalf, 2, 8, 128, 0, 0},
    {GgmlType::kQ8_0Lean, TileScale::kHalf, 2, 4, 8, 0, 0},  // value = d * (16 * (quant - 8) + 0 or 8)
};

static constexpr const TileShape* tile_shape(GgmlType type) {
  for (const TileShape& s : kTileShapes) {
    if (s.type == type) return &s;
  }
  return nullptr;
}

// Nested quants q are 16 * high + low, value d * (q - 136): so the high half alone says the nearest of
// 16 levels, d * 16 * (high - 8), as in Q4_0. There is one level more below zero than above, so d has
// the sign that puts the larger end of the block below. A block that reaches 120 at its other end too (one in
// eight of SmolLM2) is raised: it has 8 more, value d * (q - 128), levels d * (16 * (high - 8) + 8), none of them zero.
// (High halves rounded down, the middle of those that share one as level, had a perplexity of 39 on
// SmolLM2 where Q4_0 has 25 and this 24.)
constexpr int kNestedOffset = 136, kRaisedOffset = 128;
constexpr float kLeanScale = 16.0f, kLeanRaisedMin = 8.0f;
static constexpr bool has_raised(const TileShape& s) {
  return is_nested(s) || s.type == GgmlType::kQ8_0Lean;
}

// Bytes of one tile of n_cols columns; in the first plane.
static constexpr size_t tile_bytes(const TileShape& s, int64_t n_cols) {
  if (is_plain(s)) return static_cast<size_t>(n_cols) * static_cast<size_t>(s.bits / 8 * kTileRows);
  const int64_t n_groups = (n_cols / QK + s.group - 1) / s.group;
  return static_cast<size_t>(n_groups) * static_cast<size_t>(group_bytes(s));
}

// Bytes of a tile's residuals.
constexpr int kResidualBlockBytes = 256;
static constexpr size_t residual_bytes(const TileShape& s, int64_t n_cols) {
  const int64_t n_groups = (n_cols / QK + s.group - 1) / s.group;
  return is_nested(s) ? static_cast<size_t>(n_groups * s.group * kResidualBlockBytes) : 0;
}

// Two bytes a block and tile: bit r is set where the block of row r is raised. Of all tiles, to a line.
static constexpr size_t raised_tile_bytes(const TileShape& s, int64_t n_cols) {
  const int64_t n_groups = (n_cols / QK + s.group - 1) / s.group;
  return has_raised(s) ? static_cast<size_t>(n_groups * s.group * 2) : 0;
}
static constexpr size_t raised_bytes(const TileShape& s, int64_t n_tiles, int64_t n_cols) {
  return (static_cast<size_t>(n_tiles) * raised_tile_bytes(s, n_cols) + 63) / 64 * 64;
}

// Where a tile lies.
struct TilePlanes {
  const uint8_t* first;
  const uint8_t* raised;    // of nested and lean forms
  const uint8_t* residual;  // of nested forms
};
// Inlined, so that a form's shape is a constant in it: a call a tile costs a product of one row 3 % of its instructions.
static inline __attribute__((always_inline)) TilePlanes tile_planes(const TileShape& s, const PackedMatrix& w, int64_t tile) {
  const size_t bytes = tile_bytes(s, w.n_cols), t = static_cast<size_t>(tile);
  if (!has_raised(s)) return {w.data + t * bytes, nullptr, nullptr};
  const int64_t n_tiles = (w.n_rows + kTileRows - 1) / kTileRows;
  const uint8_t* raised = w.data + static_cast<size_t>(n_tiles) * bytes;
  const uint8_t* residuals = raised + raised_bytes(s, n_tiles, w.n_cols);
  return {w.data + t * bytes, raised + t * raised_tile_bytes(s, w.n_cols),
          is_nested(s) ? residuals + t * residual_bytes(s, w.n_cols) : nullptr};
}

// The tiled form's own packing, in baseline code: the `packed_bytes`, `pack_tiles` and `packed_row`
// of every column that computes on tiles.
namespace tiled {
size_t packed_bytes(GgmlType type, int64_t n_rows, int64_t n_cols);
void pack_tiles(GgmlType type, const uint8_t* rows, int64_t n_rows, int64_t n_cols,
                int64_t tile_begin, int64_t tile_end, uint8_t* dst);
void packed_row(const PackedMatrix& w, int64_t row, float* out);
}  // namespace tiled

}  // namespace tandem
