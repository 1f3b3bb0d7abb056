// Matmul of F32, F16 and BF16 weights with float activations, once for all vector columns:
// matmul_dense_<isa>.cc includes its simd_<isa>.h, then this. One output element is one chain of fma
// over ascending k, whatever rows and tiles share the registers. A few tiles at a time stay in the
// cache while all rows pass by, so that weights are read from memory once.
#pragma once

#include <string.h>

#include "kernels/columns.h"
#include "kernels/tile_layout.h"

namespace tandem {
namespace {
namespace dense {

using simd::kLanes;
using simd::Vec;

constexpr int kVectors = kTileRows / kLanes;  // of one tile's k
constexpr int kTilesInCache = 4;
// The columns of a pass over the rows: those of the tiles and of some hundred rows stay in the second
// cache. Sums wait in y, which does not round them.
constexpr int64_t kColumnsAtOnce = 1024;
// Accumulators fill the registers: 24 of 32 with AVX-512 and NEON, 12 of 16 with AVX2.
constexpr int kManyRows = kLanes == 16 ? 12 : 6;
constexpr int kManyTiles = kLanes == 16 ? 2 : 1;
// Tiles at once for few rows: enough sums to hide the latency of an fma.
constexpr int few_tiles(int rows) {
  const int n = (kLanes == 8 ? 8 : 16) / (kVectors * rows);
  return n > 4 ? 4 : n > 1 ? n : 1;
}

template <GgmlType kType>
TANDEM_SIMD Vec load_weights(const uint8_t* p) {
  if constexpr (kType == GgmlType::kF16) return simd::load_half(p);
  if constexpr (kType == GgmlType::kBF16) return simd::load_bf16(p);
  return simd::load(reinterpret_cast<const float*>(p));
}

// What multiply reads and writes besides the rows: kTiles neighbouring tiles of weights.
struct Tiles {
  const uint8_t* data;  // of the first column
  size_t bytes;         // from one to the next
  int64_t n_cols;
  int64_t n_valid;  // output columns that exist
  bool is_first;    // of the columns: y is not read
};

// y[kRows][kTiles * 16] (+)= x[kRows][n_cols] * tiles.
template <GgmlType kType, int kTiles, int kRows>
void multiply(const Tiles& w, const float* x, int64_t ldx, float* y, int64_t ldy) {
  constexpr int kBytes = kType == GgmlType::kF32 ? 4 : 2;
  Vec acc[kTiles * kVectors][kRows];
#pragma GCC unroll 8
  for (int v = 0; v < kTiles * kVectors; ++v) {
    const int64_t left = w.n_valid - v * kLanes;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      acc[v][r] = w.is_first ? simd::zero() : simd::load_first(y + r * ldy + v * kLanes, left);
    }
  }
  const uint8_t* at = w.data;
  for (int64_t k = 0; k < w.n_cols; ++k, at += kBytes * kTileRows) {
    Vec weights[kTiles * kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kTiles * kVectors; ++v) {
      weights[v] = load_weights<kType>(at + static_cast<size_t>(v / kVectors) * w.bytes +
                                       kBytes * kLanes * (v % kVectors));
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec b = simd::splat(x[r * ldx + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kTiles * kVectors; ++v) acc[v][r] = simd::fma(weights[v], b, acc[v][r]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kTiles * kVectors; ++v) {
    const int64_t left = w.n_valid - v * kLanes;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* to = y + r * ldy + v * kLanes;
      if (left >= kLanes) simd::store(to, acc[v][r]);
      if (left > 0 && left < kLanes) simd::store_first(to, left, acc[v][r]);
    }
  }
}

// A group of at most kTilesInCache tiles with kRows rows, kTiles at a time; columns from `column` on.
template <GgmlType kType, int kTiles, int kRows>
void multiply_group(const PackedMatrix& w, int64_t begin, int64_t end, int64_t column,
                    const float* x, int64_t ldx, float* y, int64_t ldy) {
  constexpr TileShape kShape = *tile_shape(kType);
  const size_t bytes = tile_bytes(kShape, w.n_cols);
  const int64_t left = w.n_cols - column, n = left < kColumnsAtOnce ? left : kColumnsAtOnce;
  int64_t t = begin;
  const auto tiles = [&] {
    return Tiles{w.data + static_cast<size_t>(t) * bytes + tile_bytes(kShape, column), bytes, n,
                 w.n_rows - t * kTileRows, column == 0};
  };
  for (; end - t >= kTiles; t += kTiles) {
    multiply<kType, kTiles, kRows>(tiles(), x, ldx, y + t * kTileRows, ldy);
  }
  for (; t < end; ++t) multiply<kType, 1, kRows>(tiles(), x, ldx, y + t * kTileRows, ldy);
}

template <GgmlType kType>
void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x, int64_t ldx,
            int64_t M, float* y, int64_t ldy) {
  for (int64_t t = tile_begin; t < tile_end; t += kTilesInCache) {
    const int64_t end = t + kTilesInCache < tile_end ? t + kTilesInCache : tile_end;
    for (int64_t column = 0; column < w.n_cols; column += kColumnsAtOnce) {
      int64_t m = 0;
      const auto rows = [&](auto multiply_rows, int64_t n) {
        for (; M - m >= n; m += n) {
          multiply_rows(w, t, end, column, x + m * ldx + column, ldx, y + m * ldy, ldy);
        }
      };
      rows(multiply_group<kType, kManyTiles, kManyRows>, kManyRows);
      rows(multiply_group<kType, few_tiles(4), 4>, 4);
      rows(multiply_group<kType, few_tiles(2), 2>, 2);
      rows(multiply_group<kType, few_tiles(1), 1>, 1);
    }
  }
}

void matmul_dense(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,
                  int64_t ldx, int64_t M, float* y, int64_t ldy) {
  const auto multiply = w.type == GgmlType::kF16    ? matmul<GgmlType::kF16>
                        : w.type == GgmlType::kBF16 ? matmul<GgmlType::kBF16>
                                                    : matmul<GgmlType::kF32>;
  multiply(w, tile_begin, tile_end, x, ldx, M, y, ldy);
}

}  // namespace dense
}  // namespace
}  // namespace tandem
