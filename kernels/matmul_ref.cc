// Reference of packing and matmul: the packed form is the file's own rows; sums are in double
// precision, eight interleaved partial sums in a fixed tree.
#include <math.h>
#include <string.h>

#include "kernels/act_block.h"
#include "kernels/columns.h"

namespace tandem::ref {
namespace {

constexpr int kLanes = 8;       // partial sums: value k goes to lane k % 8
constexpr int kRowsAtOnce = 8;  // activation rows that share one dequantized block
constexpr int kChunk = QK_K;    // values dequantized at once; a multiple of every block size

int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

bool is_served(const QuantTraits* t, int64_t n_cols) {
  return t && t->dequantize_row && n_cols % t->block_size == 0 && n_cols % QK == 0;
}

size_t row_bytes(const QuantTraits& t, int64_t n_cols) {
  return static_cast<size_t>(n_cols / t.block_size) * static_cast<size_t>(t.block_bytes);
}

void add_products(const float* w, const float* x, int64_t n, double sums[kLanes]) {
  for (int64_t k = 0; k < n; k += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(w[k + lane]) * static_cast<double>(x[k + lane]);
    }
  }
}

double total(const double s[kLanes]) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

// Values [begin, begin + n) of an activation row as floats.
void dequantize_act(const uint8_t* act, int64_t begin, int64_t n, float* out) {
  for (int64_t b = begin / QK; b < (begin + n) / QK; ++b, out += QK) {
    ActBlock a;
    memcpy(&a, act + b * static_cast<int64_t>(sizeof a), sizeof a);
    for (int j = 0; j < QK; ++j) out[j] = a.d * static_cast<float>(act_level(a, j));
  }
}

void quantize_block(const float* x, ActBlock* out) {
  float amax = 0;
  bool finite = true;
  for (int j = 0; j < QK; ++j) {
    finite = finite && isfinite(x[j]);
    amax = fabsf(x[j]) > amax ? fabsf(x[j]) : amax;
  }
  ActBlock a = {};
  const float inverse = finite && amax > kActTiny ? kActSteps / amax : 0.0f;
  int sum[2] = {0, 0}, fine_sum = 0;
  for (int j = 0; inverse != 0 && j < QK / 2; ++j) {
    // In steps of 16 d. The second value's low four bits go first: the first value makes up for
    // them.
    const int second = static_cast<int>(lrintf(x[j + 16] * inverse));
    const int low = second & 15;
    const float noise = static_cast<float>(low) * 0.0625f;
    const int first = static_cast<int>(lrintf(x[j] * inverse - noise));
    const int coarse = (first + 8) >> 4, high = first - 16 * coarse;  // high: -8 ... 7
    const int fine = 16 * high + low;
    a.coarse[j] = static_cast<int8_t>(coarse);
    a.coarse[j + 16] = static_cast<int8_t>((second >> 4) - high);
    a.fine[j] = static_cast<int8_t>(fine < -127 ? -127 : fine);
    sum[0] += act_level(a, j);
    sum[1] += act_level(a, j + 16);
    fine_sum += a.fine[j];
  }
  a.d = !finite ? NAN : inverse != 0 ? amax / kActSteps * 0.0625f : 0.0f;
  const int both = sum[0] + sum[1];
  a.s = a.d * static_cast<float>(both);
  a.c8 = -8 * both;
  a.c16 = -16 * both;
  a.c128 = -128 * both;
  a.c32[0] = -32 * sum[0];
  a.c32[1] = -32 * sum[1];
  a.fine_128 = 128 * fine_sum;
  *out = a;
}

// One of two sources of activations: quantized rows, or floats with a row stride.
struct Activations {
  const uint8_t* act;
  const float* x;
  int64_t ldx;

  const float* values(int64_t m, int64_t begin, int64_t n, int64_t n_cols, float* buffer) const {
    if (x) return x + m * ldx + begin;
    dequantize_act(act + static_cast<size_t>(m) * act_row_bytes_of(n_cols), begin, n, buffer);
    return buffer;
  }
};

void matmul_any(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const Activations& a,
                int64_t M, float* y, int64_t ldy) {
  const QuantTraits& t = *quant_traits(static_cast<uint32_t>(w.type));
  const size_t stride = row_bytes(t, w.n_cols);
  float weights[kChunk], buffer[kChunk];
  const int64_t n_end = min64(tile_end * kTileRows, w.n_rows);
  for (int64_t n = tile_begin * kTileRows; n < n_end; ++n) {
    const uint8_t* row = w.data + static_cast<size_t>(n) * stride;
    for (int64_t m0 = 0; m0 < M; m0 += kRowsAtOnce) {
      const int64_t m_end = min64(m0 + kRowsAtOnce, M);
      double sums[kRowsAtOnce][kLanes] = {};
      for (int64_t k = 0; k < w.n_cols; k += kChunk) {
        const int64_t len = min64(kChunk, w.n_cols - k);
        t.dequantize_row(row + row_bytes(t, k), len, weights);
        for (int64_t m = m0; m < m_end; ++m) {
          add_products(weights, a.values(m, k, len, w.n_cols, buffer), len, sums[m - m0]);
        }
      }
      for (int64_t m = m0; m < m_end; ++m) y[m * ldy + n] = static_cast<float>(total(sums[m - m0]));
    }
  }
}

}  // namespace

size_t packed_bytes(GgmlType type, int64_t n_rows, int64_t n_cols) {
  const QuantTraits* t = quant_traits(static_cast<uint32_t>(type));
  if (!is_served(t, n_cols)) return 0;
  const int64_t n_tiles = (n_rows + kTileRows - 1) / kTileRows;
  return static_cast<size_t>(n_tiles * kTileRows) * row_bytes(*t, n_cols);
}

void pack_tiles(GgmlType type, const uint8_t* rows, int64_t n_rows, int64_t n_cols,
                int64_t tile_begin, int64_t tile_end, uint8_t* dst) {
  const size_t bytes = row_bytes(*quant_traits(static_cast<uint32_t>(type)), n_cols);
  const size_t begin = static_cast<size_t>(tile_begin * kTileRows) * bytes;
  const size_t have = static_cast<size_t>(min64(tile_end * kTileRows, n_rows)) * bytes;
  const size_t end = static_cast<size_t>(tile_end * kTileRows) * bytes;
  if (have > begin) memcpy(dst + begin, rows + begin, have - begin);
  if (end > have) memset(dst + have, 0, end - have);
}

void packed_row(const PackedMatrix& w, int64_t row, float* out) {
  const QuantTraits& t = *quant_traits(static_cast<uint32_t>(w.type));
  t.dequantize_row(w.data + static_cast<size_t>(row) * row_bytes(t, w.n_cols), w.n_cols, out);
}

size_t act_row_bytes(int64_t n_cols) { return act_row_bytes_of(n_cols); }

void quantize_act(const float* x, int64_t n_cols, uint8_t* act) {
  for (int64_t b = 0; b < n_cols / QK; ++b) {
    ActBlock block;
    quantize_block(x + b * QK, &block);
    memcpy(act + b * static_cast<int64_t>(sizeof block), &block, sizeof block);
  }
}

void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
            int64_t M, float* y, int64_t ldy) {
  matmul_any(w, tile_begin, tile_end, {act, nullptr, 0}, M, y, ldy);
}

void matmul_f32(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,
                int64_t ldx, int64_t M, float* y, int64_t ldy) {
  matmul_any(w, tile_begin, tile_end, {nullptr, x, ldx}, M, y, ldy);
}

}  // namespace tandem::ref
