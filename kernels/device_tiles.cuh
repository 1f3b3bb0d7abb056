// A matrix of tiles in device memory as a kernel gets it: where each plane of tile_layout.h begins, and how far apart tiles are.
#pragma once

#include "kernels/device_math.cuh"
#include "kernels/tile_layout.h"

namespace tandem {

struct DeviceTiles {
  TilePlanes begin;
  int64_t first_stride, raised_stride, residual_stride;  // bytes from tile to tile
};

// w: of a type of tile_layout.h. On the host; what w.data points to is not read.
static inline DeviceTiles device_tiles(const PackedMatrix& w) {
  const TileShape& s = *tile_shape(w.type);
  return {tile_planes(s, w, 0), static_cast<int64_t>(tile_bytes(s, w.n_cols)),
          static_cast<int64_t>(raised_tile_bytes(s, w.n_cols)), static_cast<int64_t>(residual_bytes(s, w.n_cols))};
}

// Planes that kType has not are null.
template <GgmlType kType>
TANDEM_DEVICE TilePlanes tile_at(const DeviceTiles& tiles, int64_t tile) {
  constexpr TileShape kShape = *tile_shape(kType);
  TilePlanes at = {tiles.begin.first + tile * tiles.first_stride, nullptr, nullptr};
  if constexpr (has_raised(kShape)) at.raised = tiles.begin.raised + tile * tiles.raised_stride;
  if constexpr (is_nested(kShape)) at.residual = tiles.begin.residual + tile * tiles.residual_stride;
  return at;
}

}  // namespace tandem
