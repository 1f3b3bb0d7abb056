// The k-quants: a scale (and minimum) for each small block, themselves stored as 6 or 8 bits of the super-block's.
//
// DESIGN. The plain scale (extreme / highest level) spends the levels on one outlier. So several step widths are tried; for each
// the values are rounded, and the scale that then has the least weighted squared error follows in closed form (step_search.h). Unless
// the columns have weights of their own, these favour large values, which move a dot product most. Method and numbers of tries are
// those of llama.cpp's k-quants, so that the files are as good as theirs (tests/quantize compares errors with plain rounding).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/quant_blocks.h"
#include "kernels/quant_traits.h"
#include "quantize/keep_better.h"
#include "quantize/row_quantizers.h"
#include "quantize/step_search.h"

namespace tandem {

namespace {

constexpr int kSmall = 16;           // values a block of Q6_K
constexpr float kNothing = 1e-15f;   // a super-block whose scales are all below is zero

// value = d * scale * level - dmin * min; levels, step widths to try.
constexpr AffineSearch kSearchQ4{16, 20, -1.0f}, kSearchQ5{32, 15, -0.5f};

// Of Q6_K's tries: the extreme value on the lowest level, then from 0.9 levels less to 0.9 more.
constexpr LevelRange kRangeQ6{-32, 31};
constexpr auto kWidthsQ6 = [] {
  std::array<float, 19> widths{};
  for (int t = 0; t < 19; ++t) {
    const int delta = t == 0 ? 0 : t <= 9 ? t - 10 : t - 9;
    widths[static_cast<size_t>(t)] = 32 + 0.1f * static_cast<float>(delta);
  }
  return widths;
}();

Affine find_affine(const float* x, const float* column_weight, AffineSearch search) {
  if (column_weight != nullptr) {
    search.is_centered = true;
    return refine_affine(x, column_weight, search, search_affine(x, column_weight, search));
  }
  float energy = 0;
  for (int i = 0; i < QK; ++i) energy += x[i] * x[i];
  const float rms = std::sqrt(energy / QK);
  float weight[QK];
  for (int i = 0; i < QK; ++i) weight[i] = rms + std::fabs(x[i]);
  return search_affine(x, weight, search);
}

float find_scale(const float* x, const float* column_weight) {
  if (column_weight != nullptr)
    return refine_scale(x, column_weight, kSmall, kRangeQ6, search_scale(x, column_weight, kSmall, kRangeQ6, kWidthsQ6));
  float weight[kSmall];
  for (int i = 0; i < kSmall; ++i) weight[i] = x[i] * x[i];
  return search_scale(x, weight, kSmall, kRangeQ6, kWidthsQ6);
}

// Six-bit scales and mins as scale_min_k4 reads them.
void put_scales_k4(const int* scale, const int* min, uint8_t packed[12]) {
  std::memset(packed, 0, 12);
  for (int j = 0; j < 4; ++j) {
    packed[j] = static_cast<uint8_t>(scale[j] | ((scale[j + 4] >> 4) << 6));
    packed[j + 4] = static_cast<uint8_t>(min[j] | ((min[j + 4] >> 4) << 6));
    packed[j + 8] = static_cast<uint8_t>((scale[j + 4] & 15) | ((min[j + 4] & 15) << 4));
  }
}

struct SuperBlock {
  uint16_t d = 0, dmin = 0;
  uint8_t scales[12] = {};
  int level[QK_K] = {};
};

// Q4_K and Q5_K but for how the levels are packed. column_weight: [QK_K]; null: a value counts by its magnitude.
SuperBlock quantize_super_block(const float* x, const float* column_weight, const AffineSearch& search) {
  constexpr int kBlocks = QK_K / QK;
  Affine found[kBlocks];
  float max_scale = 0, max_min = 0;
  for (int j = 0; j < kBlocks; ++j) {
    found[j] = find_affine(x + QK * j, column_weight ? column_weight + QK * j : nullptr, search);
    max_scale = std::max(max_scale, found[j].scale);
    max_min = std::max(max_min, -found[j].min);
  }
  SuperBlock s;
  s.d = float_to_half(max_scale / 63);
  s.dmin = float_to_half(max_min / 63);
  const float d = half_to_float(s.d), dmin = half_to_float(s.dmin);
  int scale[kBlocks], min[kBlocks];
  for (int j = 0; j < kBlocks; ++j) {
    scale[j] = max_scale > 0 ? nearest_level(found[j].scale * (63 / max_scale), 0, 63) : 0;
    min[j] = max_min > 0 ? nearest_level(-found[j].min * (63 / max_min), 0, 63) : 0;
    const float step = d * static_cast<float>(scale[j]), shift = dmin * static_cast<float>(min[j]);
    if (!(step > 0)) continue;
    for (int i = QK * j; i < QK * (j + 1); ++i) {
      s.level[i] = nearest_level((x[i] + shift) / step, 0, search.n_levels - 1);
    }
  }
  put_scales_k4(scale, min, s.scales);
  return s;
}

void make_q4_k(const float* x, const float* column_weight, uint8_t* block) {
  const SuperBlock s = quantize_super_block(x, column_weight, kSearchQ4);
  block_q4_K b;
  b.d = s.d, b.dmin = s.dmin;
  std::memcpy(b.scales, s.scales, sizeof b.scales);
  for (int j = 0; j < QK_K / 2; ++j) {
    const int* level = s.level + 2 * QK * (j / QK) + j % QK;
    b.qs[j] = static_cast<uint8_t>(level[0] | (level[QK] << 4));
  }
  std::memcpy(block, &b, sizeof b);
}

void make_q5_k(const float* x, const float* column_weight, uint8_t* block) {
  const SuperBlock s = quantize_super_block(x, column_weight, kSearchQ5);
  block_q5_K b = {};
  b.d = s.d, b.dmin = s.dmin;
  std::memcpy(b.scales, s.scales, sizeof b.scales);
  for (int j = 0; j < QK_K / 2; ++j) {
    const int* level = s.level + 2 * QK * (j / QK) + j % QK;
    b.qs[j] = static_cast<uint8_t>((level[0] & 15) | ((level[QK] & 15) << 4));
  }
  for (int j = 0; j < QK_K; ++j) {
    b.qh[j % QK] = static_cast<uint8_t>(b.qh[j % QK] | ((s.level[j] >> 4) << (j / QK)));
  }
  std::memcpy(block, &b, sizeof b);
}

void make_q6_k(const float* x, const float* column_weight, uint8_t* block) {
  constexpr int kBlocks = QK_K / kSmall;
  float scale[kBlocks], largest = 0;
  for (int j = 0; j < kBlocks; ++j) {
    scale[j] = find_scale(x + kSmall * j, column_weight ? column_weight + kSmall * j : nullptr);
    if (std::fabs(scale[j]) > std::fabs(largest)) largest = scale[j];
  }
  block_q6_K b = {};
  if (std::fabs(largest) >= kNothing) {
    const float steps = -128 / largest;
    b.d = float_to_half(1 / steps);
    const float d = half_to_float(b.d);
    for (int j = 0; j < QK_K; ++j) {
      int8_t& stored = b.scales[j / kSmall];
      stored = static_cast<int8_t>(nearest_level(steps * scale[j / kSmall], -128, 127));
      const float step = d * static_cast<float>(stored);
      const int q = (step != 0 ? nearest_level(x[j] / step, kRangeQ6.low, kRangeQ6.high) : 0) - kRangeQ6.low;
      const int half = j / 128, plane = j % 128 / 32, l = j % 32;
      uint8_t& low = b.ql[64 * half + 32 * (plane % 2) + l];
      low = static_cast<uint8_t>(low | ((q & 15) << (plane < 2 ? 0 : 4)));
      uint8_t& high = b.qh[32 * half + l];
      high = static_cast<uint8_t>(high | ((q >> 4) << (2 * plane)));
    }
  }
  std::memcpy(block, &b, sizeof b);
}

void make_row(BlockMaker make, const float* x, int64_t n, size_t block_bytes, uint8_t* blocks) {
  for (int64_t i = 0; i < n / QK_K; ++i, x += QK_K, blocks += block_bytes) make(x, nullptr, blocks);
}

}  // namespace

void quantize_file_row_q4_k(const float* x, int64_t n, uint8_t* blocks) {
  make_row(make_q4_k, x, n, sizeof(block_q4_K), blocks);
}
void quantize_file_row_q5_k(const float* x, int64_t n, uint8_t* blocks) {
  make_row(make_q5_k, x, n, sizeof(block_q5_K), blocks);
}
void quantize_file_row_q6_k(const float* x, int64_t n, uint8_t* blocks) {
  make_row(make_q6_k, x, n, sizeof(block_q6_K), blocks);
}

void improve_file_row_q4_k(const float* x, const float* weight, int64_t n, uint8_t* blocks) {
  keep_better(GgmlType::kQ4_K, make_q4_k, x, weight, n, blocks);
}
void improve_file_row_q5_k(const float* x, const float* weight, int64_t n, uint8_t* blocks) {
  keep_better(GgmlType::kQ5_K, make_q5_k, x, weight, n, blocks);
}
void improve_file_row_q6_k(const float* x, const float* weight, int64_t n, uint8_t* blocks) {
  keep_better(GgmlType::kQ6_K, make_q6_k, x, weight, n, blocks);
}

}  // namespace tandem
