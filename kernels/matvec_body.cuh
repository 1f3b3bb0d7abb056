// The product kernel, once for all types and paths: blocks of threads own 32 rows (two tiles; with a gate, two of
// each of its two weights) and all of K, warps take slices of K, and what a slice gives waits in shared memory until
// slices are added in ascending order. Included by matvec_<type>.cu alone. DESIGN
// - A warp reads one tile: lanes 0..15 its rows at even blocks of the slice, lanes 16..31 at odd ones, so that
//   quants, scales and minimums of two blocks are whole 32-byte sectors, whatever the type. (What says which blocks of a
//   nested tile are raised is 16 blocks a sector.)
// - Results never leave the block of threads before they are what the next launch reads (ends of matvec.cuh).
#pragma once

#include "kernels/device_launch.cuh"
#include "kernels/device_make_acts.cuh"
#include "kernels/matvec.cuh"
#include "kernels/matvec_forms.cuh"
#include "kernels/matvec_launch.cuh"

namespace tandem {

constexpr int kSliceBlocks = 8;  // a super-block
constexpr int kMostUnits = 4;    // tiles a block of threads owns: 2, or 4 with a gate

// Rows of activations that the columns of this block of threads read; lanes past the last read row 0 of them.
template <int kMaxRows>
struct ActRows {
  const uint8_t* row[kMaxRows];
};

template <int kMaxRows>
TANDEM_DEVICE void find_rows(const MatvecArgs& p, const uint8_t* base, int64_t row_bytes, int first, int n,
                             ActRows<kMaxRows>* rows) {
#pragma unroll
  for (int m = 0; m < kMaxRows; ++m) {
    const int row = first + (m < n ? m : 0);
    rows->row[m] = base + (p.act_rows ? p.act_rows[row] : row) * row_bytes;
  }
}

// --- dp4a ------------------------------------------------------------------------------------------

template <GgmlType kType, int kMaxRows>
TANDEM_DEVICE void add_dot_block(const typename DeviceForm<kType>::Raw& raw, const BlockScales& scales, int b, int n,
                                 const ActRows<kMaxRows>& acts, float acc[kMaxRows]) {
  using Form = DeviceForm<kType>;
  uint32_t low[4], high[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) Form::unpack(raw, i, &low[i], &high[i]);
#pragma unroll
  for (int m = 0; m < kMaxRows; ++m) {
    if (kMaxRows > 1 && m >= n) break;
    const ActBlock* a = reinterpret_cast<const ActBlock*>(acts.row[m]) + b;
    const uint4* bytes = reinterpret_cast<const uint4*>(a);
    const uint4 c0 = bytes[0], c1 = bytes[1], f = bytes[2];
    const uint32_t first[4] = {c0.x, c0.y, c0.z, c0.w}, last[4] = {c1.x, c1.y, c1.z, c1.w};
    const uint32_t fines[4] = {f.x, f.y, f.z, f.w};
    int coarse = 0, coarse2 = 0, fine = 0, fine2 = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      coarse = dot4(low[i], first[i], coarse);
      if constexpr (Form::kIsSplit) {
        coarse2 = dot4(high[i], last[i], coarse2);
      } else {
        coarse = dot4(high[i], last[i], coarse);
      }
      if constexpr (Form::kHasPacked) {
        fine = dot4(raw.x[i] ^ 0x80808080u, fines[i], fine);
      } else {
        fine = dot4(low[i], fines[i], fine);
        fine2 = dot4(high[i], fines[i], fine2);
      }
    }
    acc[m] = add_block<kType>(acc[m], coarse, coarse2, fine, fine2, scales, act_scalars<kType>(a));
  }
}

// --- floats ----------------------------------------------------------------------------------------

template <GgmlType kType, int kMaxRows>
TANDEM_DEVICE void add_float_block(const TilePlanes& tile, const typename DeviceForm<kType>::Raw& raw, const BlockScales& scales,
                                   int b, int n, const ActRows<kMaxRows>& acts, float acc[kMaxRows]) {
  using Form = DeviceForm<kType>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float w[4];
      if constexpr (Form::kIsPlain) {
        const int64_t k = int64_t{b} * QK + 16 * half + 4 * i;
#pragma unroll
        for (int t = 0; t < 4; ++t) w[t] = plain_value<kType>(tile.first, k + t, lane_of_thread() % kTileRows);
      } else {
        uint32_t low, high;
        Form::unpack(raw, i, &low, &high);
#pragma unroll
        for (int t = 0; t < 4; ++t) w[t] = weight_value<kType>(half ? high : low, t, scales, half != 0);
      }
#pragma unroll
      for (int m = 0; m < kMaxRows; ++m) {
        if (kMaxRows > 1 && m >= n) break;
        const float4 x = *(reinterpret_cast<const float4*>(acts.row[m]) + b * (QK / 4) + 4 * half + i);
        acc[m] = fmaf(w[0], x.x, acc[m]);
        acc[m] = fmaf(w[1], x.y, acc[m]);
        acc[m] = fmaf(w[2], x.z, acc[m]);
        acc[m] = fmaf(w[3], x.w, acc[m]);
      }
    }
  }
}

// A slice by lanes that each own a row: lanes 16..31 have the odd blocks. Split types have whole slices alone, so all lanes
// are there when they hand scales on (byte_pair). partial: [kMaxRows][2][16].
template <GgmlType kType, DotPath kPath, int kMaxRows>
TANDEM_DEVICE void row_slice(const TilePlanes& tile, int first_block, int n_blocks, int n,
                             const ActRows<kMaxRows>& acts, float* partial) {
  using Form = DeviceForm<kType>;
  const int lane = lane_of_thread(), row = lane % kTileRows, odd = lane / kTileRows;
  float acc[kMaxRows] = {};
  const auto load = [&](int b, typename Form::Raw* raw, BlockScales* scales) {
    if constexpr (!Form::kIsPlain) {
      *raw = Form::load(tile, b, row);
      *scales = Form::template scales<kPath == DotPath::kFloat, true>(tile, b, row);
    }
  };
  const auto add = [&](int b, const typename Form::Raw& raw, const BlockScales& scales) {
    if constexpr (kPath == DotPath::kDp4a) {
      add_dot_block<kType, kMaxRows>(raw, scales, b, n, acts, acc);
    } else {
      add_float_block<kType, kMaxRows>(tile, raw, scales, b, n, acts, acc);
    }
  };
  // All of a slice's weights are on their way before the first is used: one row is bound by memory. kFloat is not.
  constexpr int kAhead = kPath == DotPath::kFloat ? 1 : kMaxRows == 1 ? kSliceBlocks / 2 : 2;
  if (first_block + kSliceBlocks <= n_blocks) {
#pragma unroll 1
    for (int i = 0; i < kSliceBlocks; i += 2 * kAhead) {
      typename Form::Raw raw[kAhead] = {};
      BlockScales scales[kAhead] = {};
#pragma unroll
      for (int j = 0; j < kAhead; ++j) load(first_block + i + 2 * j + odd, &raw[j], &scales[j]);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) add(first_block + i + 2 * j + odd, raw[j], scales[j]);
    }
  } else {
#pragma unroll 1
    for (int b = first_block + odd; b < n_blocks; b += 2) {
      typename Form::Raw raw = {};
      BlockScales scales = {};
      load(b, &raw, &scales);
      add(b, raw, scales);
    }
  }
#pragma unroll
  for (int m = 0; m < kMaxRows; ++m) {
    if (m < n) partial[m * 32 + lane] = acc[m];
  }
}

// --- tensor cores ----------------------------------------------------------------------------------

// A slice by mma_s8: lane l has rows l / 4 and l / 4 + 8 of the tile, in groups of 8 columns columns 2 (l % 4) and
// the next. Even and odd blocks have their own sums, as in row_slice. partial: [kMaxRows][2][16].
template <GgmlType kType, int kMaxRows>
TANDEM_DEVICE void mma_slice(const TilePlanes& tile, int first_block, int n_blocks, int n, const MatvecArgs& p,
                             int first_row, float* partial) {
  using Form = DeviceForm<kType>;
  const int lane = lane_of_thread(), row = lane / 4, j = lane % 4;
  const int64_t row_bytes = p.act_row_bytes;
  const auto act_of = [&](int column, int b) {
    const int m = first_row + (column < n ? column : 0);
    return reinterpret_cast<const ActBlock*>(p.acts.blocks + (p.act_rows ? p.act_rows[m] : m) * row_bytes) + b;
  };
  const auto load = [&](int b, typename Form::Raw raw[2], BlockScales scales[2]) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      raw[k] = Form::load_pair(tile, b, row + 8 * k, j);
      scales[k] = Form::template scales<false, false>(tile, b, row + 8 * k);
    }
  };
#pragma unroll 1
  for (int odd = 0; odd < 2; ++odd) {
    float acc[kMaxRows / 8][4] = {};
    const auto add = [&](int b, const typename Form::Raw raw[2], const BlockScales scales[2]) {
      uint32_t low[2], high[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) Form::unpack_pair(raw[k], j, &low[k], &high[k]);
#pragma unroll
      for (int t = 0; t < kMaxRows / 8; ++t) {
        if (t > 0 && 8 * t >= n) break;
        const ActBlock* a = act_of(8 * t + row, b);  // B's column of this lane is l / 4
        const uint32_t* bytes = reinterpret_cast<const uint32_t*>(a);
        const uint32_t first = bytes[j], last = bytes[4 + j], fines = bytes[8 + j];
        int coarse[4] = {}, coarse2[4] = {}, fine[4] = {}, fine2[4] = {};
        mma_s8(coarse, low[0], low[1], first);
        mma_s8(Form::kIsSplit ? coarse2 : coarse, high[0], high[1], last);
        if constexpr (Form::kHasPacked) {
          mma_s8(fine, raw[0].x[0] ^ 0x80808080u, raw[1].x[0] ^ 0x80808080u, fines);
        } else {
          mma_s8(fine, low[0], low[1], fines);
          mma_s8(fine2, high[0], high[1], fines);
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const ActScalars s = act_scalars<kType>(act_of(8 * t + 2 * j + c, b));
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const int at = 2 * k + c;
            acc[t][at] = add_block<kType>(acc[t][at], coarse[at], coarse2[at], fine[at], fine2[at], scales[k], s);
          }
        }
      }
    };
    constexpr int kAhead = kMaxRows == 8 ? kSliceBlocks / 2 : 1;  // as in row_slice
    if (first_block + kSliceBlocks <= n_blocks) {
#pragma unroll 1
      for (int i = odd; i < kSliceBlocks; i += 2 * kAhead) {
        typename Form::Raw raw[kAhead][2];
        BlockScales scales[kAhead][2];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) load(first_block + i + 2 * k, raw[k], scales[k]);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) add(first_block + i + 2 * k, raw[k], scales[k]);
      }
    } else {
#pragma unroll 1
      for (int b = first_block + odd; b < n_blocks; b += 2) {
        typename Form::Raw raw[2];
        BlockScales scales[2];
        load(b, raw, scales);
        add(b, raw, scales);
      }
    }
#pragma unroll
    for (int t = 0; t < kMaxRows / 8; ++t) {
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        const int column = 8 * t + 2 * j + at % 2;
        if (column < n) partial[column * 32 + kTileRows * odd + row + 8 * (at / 2)] = acc[t][at];
      }
    }
  }
}

// --- what becomes of the results -------------------------------------------------------------------

// total: [kMostUnits][kMaxRows][16]; one warp a row of results, lane l has row l of the 32.
template <int kMaxRows>
TANDEM_DEVICE void finish_row(const MatvecArgs& p, int product, int64_t pair, int m, int64_t row, float norm,
                              const float* total) {
  const int lane = lane_of_thread();
  const auto result = [&](int unit) {
    return total[((unit + lane / kTileRows) * kMaxRows + m) * kTileRows + lane % kTileRows] * norm;
  };
  const int64_t n = pair * QK + lane;
  const MatvecArgs::Product& w = p.products[product];
  if (p.end == MatvecEnd::kGated) {
    const float value = gated(p.gate, result(0), result(2));
    store_acts(p.next, row, pair, value, value);
    return;
  }
  if (n >= w.n_rows) return;  // kStore alone; the other ends have whole blocks
  float y = result(0);
  if (w.bias) y += w.bias[n];
  if (p.end == MatvecEnd::kStore) {
    w.out[row * w.out_stride + n] = p.softcap > 0 ? p.softcap * tanhf(y / p.softcap) : y;
    return;
  }
  const float x = p.residual[row * w.n_rows + n] + y;
  p.residual[row * w.n_rows + n] = x;
  store_acts(p.next, row, pair, p.next_norm ? x * p.next_norm[n] : x, x);
}

// Grid: x = groups of kMaxRows rows, y = pairs of tiles of all products: the groups that read a tile run together, and find it
// in the second cache.
template <GgmlType kType, DotPath kPath, int kMaxRows>
__global__ void __launch_bounds__(kPath == DotPath::kMma ? kMmaThreads : kRowThreads, 1)
    matvec_kernel(const MatvecArgs p) {
  constexpr int kItems = kPath == DotPath::kMma ? 256 / kMaxRows : 128 / kMaxRows;  // 16 kB, or 32
  __shared__ float partial[kItems * kMaxRows * 32];
  __shared__ float total[kMostUnits * kMaxRows * kTileRows];
  const int n_warps = static_cast<int>(blockDim.x) / 32, warp = warp_of_thread();
  const int first_row = static_cast<int>(blockIdx.x) * kMaxRows;
  const int n = min(p.n_rows - first_row, kMaxRows);

  int64_t pair = blockIdx.y;
  int product = 0;
  while (p.end == MatvecEnd::kStore && pair >= p.products[product].n_pairs) pair -= p.products[product++].n_pairs;
  const int n_units = p.end == MatvecEnd::kGated ? 4 : 2;

  for (int i = static_cast<int>(threadIdx.x); i < n_units * kMaxRows * kTileRows; i += static_cast<int>(blockDim.x)) {
    total[i] = 0;
  }
  ActRows<kPath == DotPath::kMma ? 1 : kMaxRows> acts;
  if constexpr (kPath == DotPath::kDp4a) {
    find_rows<kMaxRows>(p, p.acts.blocks, p.act_row_bytes, first_row, n, &acts);
  } else if constexpr (kPath == DotPath::kFloat) {
    find_rows<kMaxRows>(p, reinterpret_cast<const uint8_t*>(p.acts.floats), p.act_row_bytes, first_row, n, &acts);
  }

  const int n_slices = (p.n_blocks + kSliceBlocks - 1) / kSliceBlocks, n_items = n_slices * n_units;
  for (int first = 0; first < n_items; first += kItems) {
    const int end = min(n_items, first + kItems);
    for (int item = first + warp; item < end; item += n_warps) {
      const int unit = item % n_units, first_block = item / n_units * kSliceBlocks;
      const MatvecArgs::Product& w = p.products[p.end == MatvecEnd::kGated ? unit / 2 : product];
      const int64_t tile = 2 * pair + unit % 2;
      if (tile >= w.n_tiles) continue;
      const TilePlanes planes = tile_at<kType>(w.tiles, tile);
      float* out = partial + (item - first) * kMaxRows * 32;
      if constexpr (kPath == DotPath::kMma) {
        mma_slice<kType, kMaxRows>(planes, first_block, p.n_blocks, n, p, first_row, out);
      } else {
        row_slice<kType, kPath, kMaxRows>(planes, first_block, p.n_blocks, n, acts, out);
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < n_units * n * kTileRows; i += static_cast<int>(blockDim.x)) {
      const int r = i % kTileRows, m = i / kTileRows % n, unit = i / kTileRows / n;
      const MatvecArgs::Product& w = p.products[p.end == MatvecEnd::kGated ? unit / 2 : product];
      if (2 * pair + unit % 2 >= w.n_tiles) continue;
      float* sum = total + (unit * kMaxRows + m) * kTileRows + r;
      float x = *sum;
      for (int item = first + unit; item < end; item += n_units) {
        const float* part = partial + (item - first) * kMaxRows * 32 + m * 32 + r;
        x += part[0] + part[kTileRows];
      }
      *sum = x;
    }
    __syncthreads();
  }
  for (int m = warp; m < n; m += n_warps) {  // the norm comes last: at the start nothing would hide its latency
    const int row = first_row + m;
    const float norm = p.acts.sum_squares ? inverse_rms(p.acts, p.act_rows ? p.act_rows[row] : row, p.norm_eps) : 1.0f;
    finish_row<kMaxRows>(p, product, pair, m, row, norm, total);
  }
}

// The function of matvec_<type>.cu.
template <GgmlType kType>
cudaError_t launch_matvec_type(const MatvecArgs& args, DotPath path, int64_t n_pairs, int threads, cudaStream_t stream) {
  const auto launch = [&](auto kernel, int max_rows) {
    const dim3 grid(static_cast<unsigned>((args.n_rows + max_rows - 1) / max_rows), static_cast<unsigned>(n_pairs));
    return launch_kernel(kernel, grid, threads, stream, args);
  };
  if (path == DotPath::kFloat) {
    return args.n_rows == 1 ? launch(matvec_kernel<kType, DotPath::kFloat, 1>, 1)
                            : launch(matvec_kernel<kType, DotPath::kFloat, 8>, 8);
  }
  if constexpr (!DeviceForm<kType>::kIsPlain) {
    if (path == DotPath::kDp4a) {
      return args.n_rows == 1 ? launch(matvec_kernel<kType, DotPath::kDp4a, 1>, 1)
                              : launch(matvec_kernel<kType, DotPath::kDp4a, 8>, 8);
    }
    return args.n_rows <= 8 ? launch(matvec_kernel<kType, DotPath::kMma, 8>, 8)
                            : launch(matvec_kernel<kType, DotPath::kMma, 32>, 32);
  }
  return cudaErrorNotSupported;
}

}  // namespace tandem
