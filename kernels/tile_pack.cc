// Packing GGUF rows into tiles and reading one row back. Baseline scalar code: it runs once a
// model.
#include <string.h>

#include "kernels/quant_rows.h"
#include "kernels/tile_layout.h"

namespace tandem::tiled {
namespace {

// One row's share of a group, between the file's form and the tile's.
struct RowGroup {
  uint16_t d[8];         // half; [0] alone where the group shares one
  uint16_t m;            // half minimum, or dmin
  float d_float;         // kFloat
  uint8_t scales[8][2];  // int8 bits
  uint8_t mins[8][2];
  uint8_t q[8][32];  // unsigned quants
  bool is_raised[8];  // has_raised
};

template <typename Block>
Block read(const uint8_t* p) {
  Block b;
  memcpy(&b, p, sizeof b);
  return b;
}

void nibbles(const uint8_t qs[16], uint8_t q[32]) {
  for (int i = 0; i < 16; ++i) {
    q[i] = qs[i] & 15;
    q[i + 16] = qs[i] >> 4;
  }
}

void fifth_bits(const uint8_t qh[4], uint8_t q[32]) {
  for (int i = 0; i < 32; ++i) {
    q[i] = static_cast<uint8_t>(q[i] | (((qh[i / 8] >> (i % 8)) & 1) << 4));
  }
}

// Block b (0..group-1) of the simple types from src to g.
void read_simple(GgmlType type, const uint8_t* src, int b, RowGroup* g) {
  switch (type) {
    case GgmlType::kQ4_0:
    case GgmlType::kIQ4_NL: {
      const auto x = read<block_q4_0>(src);
      g->d[b] = x.d;
      nibbles(x.qs, g->q[b]);
      return;
    }
    case GgmlType::kQ4_1: {
      const auto x = read<block_q4_1>(src);
      g->d[b] = x.d;
      g->m = x.m;
      nibbles(x.qs, g->q[b]);
      return;
    }
    case GgmlType::kQ5_0: {
      const auto x = read<block_q5_0>(src);
      g->d[b] = x.d;
      nibbles(x.qs, g->q[b]);
      fifth_bits(x.qh, g->q[b]);
      return;
    }
    case GgmlType::kQ5_1: {
      const auto x = read<block_q5_1>(src);
      g->d[b] = x.d;
      g->m = x.m;
      nibbles(x.qs, g->q[b]);
      fifth_bits(x.qh, g->q[b]);
      return;
    }
    case GgmlType::kQ8_0Nested:
    case GgmlType::kQ8_0Lean: {
      NestedBlock x;
      nested_block(src, &x);
      g->d[b] = x.d;
      g->is_raised[b] = x.is_raised;
      memcpy(g->q[b], x.q, sizeof x.q);
      return;
    }
    case GgmlType::kQ8_0: {
      const auto x = read<block_q8_0>(src);
      g->d[b] = x.d;
      for (int i = 0; i < 32; ++i) g->q[b][i] = static_cast<uint8_t>(x.qs[i] + 128);
      return;
    }
    default: {
      const auto x = read<block_mxfp4>(src);
      g->d_float = mxfp4_scale(x.e);
      nibbles(x.qs, g->q[b]);
      return;
    }
  }
}

void read_q2_k(const uint8_t* src, RowGroup* g) {
  const auto x = read<block_q2_K>(src);
  g->d[0] = x.d;
  g->m = x.dmin;
  for (int j = 0; j < QK_K; ++j) {
    const int half = j / 128, plane = j % 128 / 32;
    g->q[j / 32][j % 32] = (x.qs[32 * half + j % 32] >> (2 * plane)) & 3;
    g->scales[j / 32][j % 32 / 16] = x.scales[j / 16] & 15;
    g->mins[j / 32][j % 32 / 16] = x.scales[j / 16] >> 4;
  }
}

void read_q3_k(const uint8_t* src, RowGroup* g) {
  const auto x = read<block_q3_K>(src);
  g->d[0] = x.d;
  for (int j = 0; j < QK_K; ++j) {
    const int half = j / 128, plane = j % 128 / 32;
    const int low = (x.qs[32 * half + j % 32] >> (2 * plane)) & 3;
    const int high = (x.hmask[j % 32] >> (4 * half + plane)) & 1;
    g->q[j / 32][j % 32] =
        static_cast<uint8_t>(low | (high << 2));  // offset 4: a set bit means + 4
    g->scales[j / 32][j % 32 / 16] = static_cast<uint8_t>(scale_k3(x.scales, j / 16));
  }
}

void read_q4_k(const uint8_t* src, RowGroup* g) {
  const auto x = read<block_q4_K>(src);
  g->d[0] = x.d;
  g->m = x.dmin;
  for (int b = 0; b < 8; ++b) {
    scale_min_k4(x.scales, b, &g->scales[b][0], &g->mins[b][0]);
    for (int l = 0; l < 32; ++l) {
      const uint8_t byte = x.qs[32 * (b / 2) + l];
      g->q[b][l] = b % 2 ? byte >> 4 : byte & 15;
    }
  }
}

void read_q5_k(const uint8_t* src, RowGroup* g) {
  const auto x = read<block_q5_K>(src);
  g->d[0] = x.d;
  g->m = x.dmin;
  for (int b = 0; b < 8; ++b) {
    scale_min_k4(x.scales, b, &g->scales[b][0], &g->mins[b][0]);
    for (int l = 0; l < 32; ++l) {
      const uint8_t byte = x.qs[32 * (b / 2) + l];
      const int low = b % 2 ? byte >> 4 : byte & 15;
      g->q[b][l] = static_cast<uint8_t>(low | (((x.qh[l] >> b) & 1) << 4));
    }
  }
}

void read_q6_k(const uint8_t* src, RowGroup* g) {
  const auto x = read<block_q6_K>(src);
  g->d[0] = x.d;
  for (int j = 0; j < QK_K; ++j) {
    const int half = j / 128, plane = j % 128 / 32, l = j % 32;
    const uint8_t low = x.ql[64 * half + 32 * (plane % 2) + l];
    const int high = (x.qh[32 * half + l] >> (2 * plane)) & 3;
    g->q[j / 32][l] = static_cast<uint8_t>((plane < 2 ? low & 15 : low >> 4) | (high << 4));
    g->scales[j / 32][l / 16] = static_cast<uint8_t>(x.scales[j / 16]);
  }
}

void read_iq4_xs(const uint8_t* src, RowGroup* g) {
  const auto x = read<block_iq4_xs>(src);
  g->d[0] = x.d;
  for (int b = 0; b < 8; ++b) {
    g->scales[b][0] = static_cast<uint8_t>(scale_iq4_xs(x.scales_h, x.scales_l, b));
    nibbles(x.qs + 16 * b, g->q[b]);
  }
}

// `n_blocks` (at most shape.group) blocks of a row. A super-block is one block of the file.
void read_group(const TileShape& s, const uint8_t* src, int n_blocks, RowGroup* g) {
  memset(g, 0, sizeof *g);
  switch (s.type) {
    case GgmlType::kQ2_K:
      return read_q2_k(src, g);
    case GgmlType::kQ3_K:
      return read_q3_k(src, g);
    case GgmlType::kQ4_K:
      return read_q4_k(src, g);
    case GgmlType::kQ5_K:
      return read_q5_k(src, g);
    case GgmlType::kQ6_K:
      return read_q6_k(src, g);
    case GgmlType::kIQ4_XS:
      return read_iq4_xs(src, g);
    default:
      break;
  }
  const int bytes = quant_traits(static_cast<uint32_t>(s.type))->block_bytes;
  for (int b = 0; b < n_blocks; ++b) read_simple(s.type, src + b * bytes, b, g);
}

// Value k of a row lies in byte k%4 of dword `row` of vector k/4.
int byte_of(int row, int k) { return 4 * row + k % 4; }

// Four values at once, a byte each, as they lie in a dword of the tile.
uint32_t load_four(const uint8_t* q) {
  uint32_t four;
  memcpy(&four, q, 4);
  return four;
}
void store_four(uint8_t* vector, int row, uint32_t four) { memcpy(vector + 4 * row, &four, 4); }

// Nibbles of eight dwords: those of the first four lie below those of the last four.
void write_nibbles(const uint32_t four[8], int row, uint8_t* block) {
  for (int j = 0; j < 4; ++j)
    store_four(block + 64 * j, row, (four[j] & 0x0f0f0f0f) | (four[j + 4] & 0x0f0f0f0f) << 4);
}

// A value at a time, this took two thirds of a first start. `residual`: of nested forms.
void write_quants(const TileShape& s, int row, const uint8_t q[32], uint8_t* block, uint8_t* residual) {
  uint32_t four[8], fifth = 0, top[2] = {0, 0};
  for (int j = 0; j < 8; ++j) four[j] = load_four(q + 4 * j);
  if (is_nested(s) || s.type == GgmlType::kQ8_0Lean) {
    if (is_nested(s)) write_nibbles(four, row, residual);
    for (uint32_t& high : four) high >>= 4;
    write_nibbles(four, row, block);
    return;
  }
  if (s.bits == 8) {
    for (int j = 0; j < 8; ++j) store_four(block + 64 * j, row, four[j]);
    return;
  }
  write_nibbles(four, row, block);
  for (int j = 0; j < 8; ++j) {
    fifth |= (four[j] >> 4 & 0x01010101) << j;
    top[j / 4] |= (four[j] >> 4 & 0x03030303) << (2 * (j % 4));
  }
  if (s.bits == 5) store_four(block + 256, row, fifth);
  if (s.bits == 6) {
    store_four(block + 256, row, top[0]);
    store_four(block + 320, row, top[1]);
  }
}

uint8_t read_quant(const TileShape& s, int row, int k, const uint8_t* block, const uint8_t* residual) {
  const int j = k / 4, at = byte_of(row, k);
  if (s.bits == 8 && !is_nested(s)) return block[64 * j + at];
  const int shift = j < 4 ? 0 : 4;
  const int low = (block[64 * (j % 4) + at] >> shift) & 15;
  if (is_nested(s))
    return static_cast<uint8_t>(low << 4 | ((residual[64 * (j % 4) + at] >> shift) & 15));
  const uint8_t* high = block + 256 + at;
  if (s.bits == 5) return static_cast<uint8_t>(low | (((high[0] >> j) & 1) << 4));
  if (s.bits == 6)
    return static_cast<uint8_t>(low | (((high[64 * (j / 4)] >> (2 * (j % 4))) & 3) << 4));
  return static_cast<uint8_t>(low);
}

void put_half(uint8_t* p, int i, uint16_t h) { memcpy(p + 2 * i, &h, sizeof h); }

float half_at(const uint8_t* p, int i) {
  uint16_t h;
  memcpy(&h, p + 2 * i, sizeof h);
  return half_to_float(h);
}

// Where scale i (0..n_scales-1) of block b and of row 0 lies in a kSuper header.
int scale_at(const TileShape& s, int b, int i) { return 64 + (b * s.n_scales + i) * kTileRows; }
int min_at(const TileShape& s, int b, int i) {
  return 64 + s.group * s.n_scales * kTileRows + (b * s.n_mins + i) * kTileRows;
}

void write_header(const TileShape& s, int row, const RowGroup& g, uint8_t* header) {
  switch (s.scale) {
    case TileScale::kHalf:
      for (int b = 0; b < s.group; ++b) put_half(header, b * kTileRows + row, g.d[b]);
      return;
    case TileScale::kFloat:
      memcpy(header + 4 * row, &g.d_float, 4);
      return;
    default:
      break;
  }
  put_half(header, row, g.d[0]);
  put_half(header, kTileRows + row, g.m);
  if (s.scale != TileScale::kSuper) return;
  for (int b = 0; b < s.group; ++b) {
    for (int i = 0; i < s.n_scales; ++i) header[scale_at(s, b, i) + row] = g.scales[b][i];
    for (int i = 0; i < s.n_mins; ++i) header[min_at(s, b, i) + row] = g.mins[b][i];
  }
}

// Block b of a row of the group at `group` as floats; `residual`, `is_raised`: of that block.
void dequantize_block(const TileShape& s, const uint8_t* group, const uint8_t* residual, bool is_raised, int row,
                      int b, float* out) {
  const uint8_t* block = group + header_bytes(s) + b * block_bytes(s);
  const int8_t* table = s.type == GgmlType::kMXFP4                                   ? kMxfp4Values
                        : s.type == GgmlType::kIQ4_NL || s.type == GgmlType::kIQ4_XS ? kIq4Values
                                                                                     : nullptr;
  for (int k = 0; k < 32; ++k) {
    const uint8_t q = read_quant(s, row, k, block, residual);
    const int offset = is_nested(s) && !is_raised ? kNestedOffset : s.offset;
    const int level = table ? table[q] : q - offset;
    float scale, min = 0;
    if (s.scale == TileScale::kHalf) {
      scale = half_at(group, b * kTileRows + row);
      if (s.type == GgmlType::kQ8_0Lean)
        min = is_raised ? kLeanRaisedMin * scale : 0, scale *= kLeanScale;
    } else if (s.scale == TileScale::kFloat) {
      memcpy(&scale, group + 4 * row, 4);
    } else {
      scale = half_at(group, row);
      min = half_at(group, kTileRows + row);
    }
    if (s.scale == TileScale::kSuper) {
      const int i = s.n_scales == 2 ? k / 16 : 0;
      scale *= static_cast<float>(static_cast<int8_t>(group[scale_at(s, b, i) + row]));
      min = s.n_mins ? -min * static_cast<float>(group[min_at(s, b, s.n_mins == 2 ? i : 0) + row])
                     : 0;
    }
    out[k] = scale * static_cast<float>(level) + min;
  }
}

void pack_plain(const TileShape& s, const uint8_t* rows, int64_t first_row, int64_t n_rows,
                int64_t n_cols, uint8_t* tile, uint8_t* /*raised*/, uint8_t* /*residual*/) {
  const int64_t size = s.bits / 8;
  for (int64_t r = 0; r < kTileRows && first_row + r < n_rows; ++r) {
    const uint8_t* row = rows + (first_row + r) * n_cols * size;
    for (int64_t k = 0; k < n_cols; ++k) {
      memcpy(tile + (k * kTileRows + r) * size, row + k * size, static_cast<size_t>(size));
    }
  }
}

void pack_blocks(const TileShape& s, const uint8_t* rows, int64_t first_row, int64_t n_rows,
                 int64_t n_cols, uint8_t* tile, uint8_t* raised, uint8_t* residual) {
  const QuantTraits& t = *quant_traits(static_cast<uint32_t>(s.type));
  const int64_t row_bytes = n_cols / t.block_size * t.block_bytes;
  const int64_t n_blocks = n_cols / QK;
  const int64_t file_group_bytes = int64_t{s.group} * QK / t.block_size * t.block_bytes;
  RowGroup g;
  for (int64_t first = 0; first < n_blocks; first += s.group, tile += group_bytes(s)) {
    const int n = static_cast<int>(n_blocks - first < s.group ? n_blocks - first : s.group);
    for (int r = 0; r < kTileRows && first_row + r < n_rows; ++r) {
      const uint8_t* row = rows + (first_row + r) * row_bytes;
      read_group(s, row + first / s.group * file_group_bytes, n, &g);
      write_header(s, r, g, tile);
      for (int b = 0; b < n; ++b) {
        if (g.is_raised[b])
          raised[2 * (first + b) + r / 8] |= static_cast<uint8_t>(1 << (r % 8));
        write_quants(s, r, g.q[b], tile + header_bytes(s) + b * block_bytes(s),
                     is_nested(s) ? residual + (first + b) * kResidualBlockBytes : nullptr);
      }
    }
  }
}

}  // namespace

size_t packed_bytes(GgmlType type, int64_t n_rows, int64_t n_cols) {
  const TileShape* s = tile_shape(type);
  if (!s || n_cols % QK != 0) return 0;
  if (n_cols % quant_traits(static_cast<uint32_t>(type))->block_size != 0) return 0;
  const int64_t n_tiles = (n_rows + kTileRows - 1) / kTileRows;
  return static_cast<size_t>(n_tiles) * (tile_bytes(*s, n_cols) + residual_bytes(*s, n_cols)) +
         raised_bytes(*s, n_tiles, n_cols);
}

void pack_tiles(GgmlType type, const uint8_t* rows, int64_t n_rows, int64_t n_cols,
                int64_t tile_begin, int64_t tile_end, uint8_t* dst) {
  const TileShape& s = *tile_shape(type);
  const PackedMatrix w = {type, n_rows, n_cols, dst};
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const TilePlanes planes = tile_planes(s, w, t);
    uint8_t* tile = dst + (planes.first - dst);
    uint8_t* raised = planes.raised ? dst + (planes.raised - dst) : nullptr;
    uint8_t* residual = planes.residual ? dst + (planes.residual - dst) : nullptr;
    memset(tile, 0, tile_bytes(s, n_cols));
    if (raised) memset(raised, 0, raised_tile_bytes(s, n_cols));
    if (residual) memset(residual, 0, residual_bytes(s, n_cols));
    const auto pack = is_plain(s) ? pack_plain : pack_blocks;
    pack(s, rows, t * kTileRows, n_rows, n_cols, tile, raised, residual);
  }
}

void packed_row(const PackedMatrix& w, int64_t row, float* out) {
  const TileShape& s = *tile_shape(w.type);
  const auto [tile, raised, residual] = tile_planes(s, w, row / kTileRows);
  const int r = static_cast<int>(row % kTileRows);
  if (is_plain(s)) {
    const QuantTraits& t = *quant_traits(static_cast<uint32_t>(s.type));
    for (int64_t k = 0; k < w.n_cols; ++k) {
      t.dequantize_row(tile + (k * kTileRows + r) * t.block_bytes, 1, out + k);
    }
    return;
  }
  for (int64_t b = 0; b < w.n_cols / QK; ++b) {
    const uint8_t* group = tile + b / s.group * group_bytes(s);
    const uint8_t* rest = is_nested(s) ? residual + b * kResidualBlockBytes : nullptr;
    const bool is_raised = has_raised(s) && (raised[2 * b + r / 8] >> (r % 8) & 1);
    dequantize_block(s, group, rest, is_raised, r, static_cast<int>(b % s.group), out + b * QK);
  }
}

}  // namespace tandem::tiled
