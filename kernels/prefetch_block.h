// Weights on their way before they are needed. Included by .cc files of columns alone; it has internal linkage.
#pragma once

#include "kernels/tile_layout.h"

namespace tandem {
namespace {

constexpr int64_t kBlocksAhead = 12;  // 4 to 7 KB; 4 and 24 were slower

// Brings the bytes of block b, the ones read in order, into the first cache; past the end of the matrix it does nothing. The processor
// reads ahead by itself only where a product waits for nothing else, as that of one row does.
static inline __attribute__((always_inline)) void prefetch_block(const TileShape& s, const TilePlanes& tile, int64_t b) {
  const int n_bytes = static_cast<int>(group_bytes(s)) / s.group;
#pragma GCC unroll 10
  for (int i = 0; i < n_bytes; i += 64) __builtin_prefetch(tile.first + b * n_bytes + i);
  if (!is_nested(s)) return;
#pragma GCC unroll 4
  for (int i = 0; i < kResidualBlockBytes; i += 64) __builtin_prefetch(tile.residual + b * kResidualBlockBytes + i);
}

}  // namespace
}  // namespace tandem
