// How one block (32 values of one row) of each tiled form becomes bytes, scales and floats on the device: one
// thread, one row. Exact products and the two fmas that add a block are here, once for dp4a and mma.
#pragma once

#include "kernels/act_block.h"
#include "kernels/device_math.cuh"
#include "kernels/device_tiles.cuh"

namespace tandem {

// Four 16-entry tables of int8 as eight dwords: no memory is touched.
TANDEM_DEVICE uint32_t iq4_values(int i) {
  return i == 0 ? 0xbfad9881u : i == 1 ? 0xf6eaddcfu : i == 2 ? 0x26190d01u : 0x71594535u;
}
TANDEM_DEVICE uint32_t mxfp4_values(int i) {
  return i == 0 ? 0x03020100u : i == 1 ? 0x0c080604u : i == 2 ? 0xfdfeff00u : 0xf4f8fafcu;
}

// The table's values at 8 nibbles: low nibbles of the four bytes in *low, high ones in *high.
template <GgmlType kType>
TANDEM_DEVICE void look_up(uint32_t nibbles, uint32_t* low, uint32_t* high) {
  uint32_t v[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t at = nibbles >> (16 * i);
    uint32_t t[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) t[j] = kType == GgmlType::kMXFP4 ? mxfp4_values(j) : iq4_values(j);
    const uint32_t below = permute_bytes(t[0], t[1], at), above = permute_bytes(t[2], t[3], at);
    v[i] = permute_bytes(below, above, 0x3210u | (at & 0x8888u) >> 1);
  }
  *low = permute_bytes(v[0], v[1], 0x6420u);
  *high = permute_bytes(v[0], v[1], 0x7531u);
}

// What a row's block is multiplied by, after its integer sums.
struct BlockScales {
  float scale, scale2;  // scale2: of the last 16 values (split types)
  float min, min2;      // as they enter add_block
  bool is_raised;       // of nested forms: kOffset is not subtracted
};

template <GgmlType kType>
struct DeviceForm {
  static constexpr TileShape kShape = *tile_shape(kType);
  static constexpr bool kIsPlain = is_plain(kShape);
  static constexpr bool kIsTable =
      kType == GgmlType::kIQ4_NL || kType == GgmlType::kIQ4_XS || kType == GgmlType::kMXFP4;
  static constexpr bool kIsSplit = kShape.n_scales == 2;
  static constexpr bool kIsNested = is_nested(kShape);
  static constexpr bool kIsLean = kType == GgmlType::kQ8_0Lean;
  static constexpr bool kHasMin = kShape.scale == TileScale::kHalfMin || kShape.n_mins > 0 || kIsLean;
  // Low and high nibbles of a byte times one byte of `fine` (act_block.h): one product instead of two.
  static constexpr bool kHasPacked = kShape.bits == 4 && !kIsTable && !kIsSplit;
  // Subtracted from what unpack() gives. Q3_K's 4 is raised to Q6_K's 32, Q8_0's bytes are made signed in both forms, and
  // only blocks of the nested one that are not raised owe more.
  static constexpr int kOffset = kIsTable || kType == GgmlType::kQ8_0 ? 0
                                 : kType == GgmlType::kQ3_K           ? 32
                                 : kIsNested                          ? kNestedOffset - kRaisedOffset
                                                                      : kShape.offset;

  TANDEM_DEVICE const uint8_t* group_of(const TilePlanes& tile, int b) {
    return tile.first + static_cast<int64_t>(b / kShape.group) * group_bytes(kShape);
  }
  TANDEM_DEVICE const uint8_t* quants_of(const TilePlanes& tile, int b) {
    return group_of(tile, b) + header_bytes(kShape) + b % kShape.group * block_bytes(kShape);
  }
  TANDEM_DEVICE const uint8_t* residual_of(const TilePlanes& tile, int b) {
    return tile.residual + static_cast<int64_t>(b) * kResidualBlockBytes;
  }

  // A row's block as it lies in memory: dword i of each of its vectors; nested: four of high halves, four of low ones.
  static constexpr int kDwords = kShape.bits == 8 ? 8 : kShape.bits;
  struct Raw {
    uint32_t x[kIsPlain ? 1 : kDwords];
  };
  TANDEM_DEVICE Raw load(const TilePlanes& tile, int b, int row) {
    constexpr int kFirst = kIsNested ? 4 : kDwords;  // of the first plane
    const uint8_t* p = quants_of(tile, b) + 4 * row;
    Raw raw;
#pragma unroll
    for (int i = 0; i < kFirst; ++i) raw.x[i] = load_constant<uint32_t>(p + 64 * i);
    if constexpr (kIsNested) {
      const uint8_t* rest = residual_of(tile, b) + 4 * row;
#pragma unroll
      for (int i = 0; i < 4; ++i) raw.x[4 + i] = load_constant<uint32_t>(rest + 64 * i);
    }
    return raw;
  }
  // What of it dwords i and i + 4 need, for threads that take only these.
  TANDEM_DEVICE Raw load_pair(const TilePlanes& tile, int b, int row, int i) {
    const uint8_t* p = quants_of(tile, b) + 4 * row;
    Raw raw = {};
    raw.x[0] = load_constant<uint32_t>(p + 64 * i);
    if constexpr (kIsNested) raw.x[1] = load_constant<uint32_t>(residual_of(tile, b) + 4 * row + 64 * i);
    if constexpr (kShape.bits == 8 && !kIsNested) raw.x[1] = load_constant<uint32_t>(p + 64 * (i + 4));
    if constexpr (kShape.bits == 5 || kShape.bits == 6) raw.x[1] = load_constant<uint32_t>(p + 256);
    if constexpr (kShape.bits == 6) raw.x[2] = load_constant<uint32_t>(p + 320);
    return raw;
  }

  // Dwords i (of *low, values 4 i ...) and i + 4 of a row, from x: of its vector i, y: i + 4 or the high bits (z: more);
  // nested: their high halves and their low ones.
  TANDEM_DEVICE void unpack(uint32_t x, uint32_t y, uint32_t z, int i, uint32_t* low, uint32_t* high) {
    if constexpr (kIsNested) {
      *low = ((x & 0x0f0f0f0fu) << 4 | (y & 0x0f0f0f0fu)) ^ 0x80808080u;
      *high = ((x & 0xf0f0f0f0u) | (y >> 4 & 0x0f0f0f0fu)) ^ 0x80808080u;
    } else if constexpr (kShape.bits == 8) {
      *low = x ^ 0x80808080u;
      *high = y ^ 0x80808080u;
    } else if constexpr (kIsTable) {
      look_up<kType>(x, low, high);
    } else {
      *low = x & 0x0f0f0f0fu;
      *high = x >> 4 & 0x0f0f0f0fu;
    }
    if constexpr (kShape.bits == 5) {
      *low |= (y >> i & 0x01010101u) << 4;
      *high |= (y >> (i + 4) & 0x01010101u) << 4;
    }
    if constexpr (kShape.bits == 6) {
      *low |= (y >> (2 * i) & 0x03030303u) << 4;
      *high |= (z >> (2 * i) & 0x03030303u) << 4;
    }
    if constexpr (kType == GgmlType::kQ3_K) {
      *low += 0x1c1c1c1cu;
      *high += 0x1c1c1c1cu;
    }
  }
  TANDEM_DEVICE void unpack(const Raw& raw, int i, uint32_t* low, uint32_t* high) {
    constexpr int kY = kShape.bits == 8 ? -1 : kDwords > 4 ? 4 : 0, kZ = kDwords > 5 ? 5 : 0;
    unpack(raw.x[i], raw.x[kY < 0 ? i + 4 : kY], raw.x[kZ], i, low, high);
  }
  TANDEM_DEVICE void unpack_pair(const Raw& raw, int i, uint32_t* low, uint32_t* high) {
    unpack(raw.x[0], raw.x[1], raw.x[kDwords > 2 ? 2 : 0], i, low, high);
  }

  TANDEM_DEVICE float half_at(const uint8_t* p) { return half_bits_to_float(load_constant<uint16_t>(p)); }

  // Two bytes of `row`, from the 16 bytes of all rows at p and the 16 after them. kIsWhole: lanes 0..15 and 16..31 each hold
  // rows 0..15 of a block, so together they read its 32 bytes as whole sectors and hand them on; else each reads its own.
  template <bool kIsWhole>
  TANDEM_DEVICE void byte_pair(const uint8_t* p, int row, uint8_t* first, uint8_t* second) {
    if constexpr (kIsWhole) {
      const uint32_t two = load_constant<uint16_t>(p + 2 * row);
      const int from = (lane_of_thread() & 16) + row / 2, shift = 8 * (row % 2);
      *first = static_cast<uint8_t>(__shfl_sync(kWholeWarp, two, from) >> shift);
      *second = static_cast<uint8_t>(__shfl_sync(kWholeWarp, two, from + 8) >> shift);
    } else {
      *first = load_constant<uint8_t>(p + row);
      *second = load_constant<uint8_t>(p + kTileRows + row);
    }
  }

  // Of block b. kExact: the minimum is what is added to a value, as dequantize_row does; else what add_block takes:
  // a split type's minimums multiply -32 * sum of their half. kIsWhole: see byte_pair; called by all lanes.
  template <bool kExact, bool kIsWhole>
  TANDEM_DEVICE BlockScales scales(const TilePlanes& tile, int b, int row) {
    BlockScales s = {0, 0, 0, 0, false};
    const uint8_t* group = group_of(tile, b);
    const int i = b % kShape.group;
    if constexpr (kShape.scale == TileScale::kHalf) {
      s.scale = half_at(group + 32 * i + 2 * row);
      if constexpr (has_raised(kShape)) s.is_raised = load_constant<uint16_t>(tile.raised + 2 * b) >> row & 1;
      if constexpr (kIsLean) {
        s.min = s.is_raised ? kLeanRaisedMin * s.scale : 0.0f;
        s.scale *= kLeanScale;
      }
    } else if constexpr (kShape.scale == TileScale::kFloat) {
      s.scale = load_constant<float>(group + 4 * row);
    } else if constexpr (kShape.scale == TileScale::kHalfMin) {
      s.scale = half_at(group + 2 * row);
      s.min = half_at(group + 32 + 2 * row);
    } else if constexpr (kShape.scale == TileScale::kSuper) {
      const uint8_t* scales = group + 64 + kTileRows * kShape.n_scales * i;
      const uint8_t* mins = group + 64 + kTileRows * (kShape.group * kShape.n_scales + kShape.n_mins * i);
      const float d = half_at(group + 2 * row);
      float dmin = 0;
      if constexpr (kHasMin) dmin = half_at(group + 32 + 2 * row) * (kIsSplit && !kExact ? 1.0f / 32 : -1.0f);
      if constexpr (kIsSplit) {
        uint8_t first, second;
        byte_pair<kIsWhole>(scales, row, &first, &second);
        s.scale = d * static_cast<float>(static_cast<int8_t>(first));
        s.scale2 = d * static_cast<float>(static_cast<int8_t>(second));
        if constexpr (kHasMin) {
          byte_pair<kIsWhole>(mins, row, &first, &second);
          s.min = dmin * static_cast<float>(first);
          s.min2 = dmin * static_cast<float>(second);
        }
      } else {
        s.scale = d * static_cast<float>(static_cast<int8_t>(load_constant<uint8_t>(scales + row)));
        if constexpr (kHasMin) s.min = dmin * static_cast<float>(load_constant<uint8_t>(mins + row));
      }
    }
    return s;
  }
};

// What an activation block brings besides its bytes.
struct ActScalars {
  float d, s;
  int offset, offset2;  // owed by unsigned quants; offset2: of the last 16 values
  int c32[2], fine_128;
};

template <GgmlType kType>
TANDEM_DEVICE ActScalars act_scalars(const ActBlock* a) {
  using Form = DeviceForm<kType>;
  const float4 first = *reinterpret_cast<const float4*>(&a->d);   // d, s, c8, c16
  const int4 second = *reinterpret_cast<const int4*>(&a->c128);   // c128, c32[2], fine_128
  ActScalars s;
  s.d = first.x;
  s.s = first.y;
  s.offset = Form::kOffset == 8    ? __float_as_int(first.z)
             : Form::kOffset == 16 ? __float_as_int(first.w)
             : Form::kOffset == 32 ? second.y
                                   : 0;
  s.offset2 = Form::kOffset == 32 ? second.z : 0;
  s.c32[0] = second.y;
  s.c32[1] = second.z;
  s.fine_128 = second.w;
  return s;
}

// acc + the block, from the exact sums: coarse, fine (times the first 16 values) and fine2 (the last 16, or 0 where
// `packed` gave both at once); split types have coarse of the first 16 alone, coarse2 of the last.
template <GgmlType kType>
TANDEM_DEVICE float add_block(float acc, int coarse, int coarse2, int fine, int fine2, const BlockScales& w,
                              const ActScalars& a) {
  using Form = DeviceForm<kType>;
  if constexpr (Form::kIsSplit) {
    const int first = 256 * coarse + fine + a.offset, last = 16 * (16 * coarse2 + fine2) + a.offset2;
    acc = fmaf(static_cast<float>(first), w.scale * a.d, acc);
    acc = fmaf(static_cast<float>(last), w.scale2 * a.d, acc);
    if constexpr (Form::kHasMin) {
      acc = fmaf(static_cast<float>(a.c32[0]), w.min * a.d, acc);
      acc = fmaf(static_cast<float>(a.c32[1]), w.min2 * a.d, acc);
    }
    return acc;
  }
  const int offset = Form::kIsNested && w.is_raised ? 0 : a.offset;
  const int sum = 256 * coarse + 16 * fine2 + fine + offset + (Form::kHasPacked ? a.fine_128 : 0);
  acc = fmaf(static_cast<float>(sum), w.scale * a.d, acc);
  if constexpr (Form::kHasMin) acc = fmaf(w.min, a.s, acc);
  return acc;
}

// Value 4 i + t of a block (t constant), from dword i: exactly as dequantize_row gives it. s: exact; is_last: i is 4 or more.
template <GgmlType kType>
TANDEM_DEVICE float weight_value(uint32_t dword, int t, const BlockScales& s, bool is_last) {
  using Form = DeviceForm<kType>;
  const bool is_second = Form::kIsSplit && is_last;
  const int offset = Form::kIsNested && s.is_raised ? 0 : Form::kOffset;
  const int level = static_cast<int>(static_cast<int8_t>(dword >> (8 * t) & 0xff)) - offset;
  const float product = (is_second ? s.scale2 : s.scale) * static_cast<float>(level);
  return Form::kHasMin ? product + (is_second ? s.min2 : s.min) : product;
}

// Plain types: value k of a row of the tile.
template <GgmlType kType>
TANDEM_DEVICE float plain_value(const uint8_t* tile, int64_t k, int row) {
  const int64_t at = k * kTileRows + row;
  if constexpr (kType == GgmlType::kF32) return load_constant<float>(tile + 4 * at);
  const uint16_t bits = load_constant<uint16_t>(tile + 2 * at);
  return kType == GgmlType::kF16 ? half_bits_to_float(bits) : bf16_bits_to_float(bits);
}

}  // namespace tandem
