// The types of 32 values a block, as ggml's reference quantizers write them: levels are searched with the
// scale in full precision, the scale is rounded to half afterwards. With weights, scales are searched for and the levels taken
// with the rounded ones.
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

float inverse(float d) { return d != 0 ? 1.0f / d : 0.0f; }

// The first value of largest magnitude, with its sign.
float extreme(const float* x) {
  float best = 0;
  for (int i = 0; i < QK; ++i) {
    if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
  }
  return best;
}

// Towards zero, in [0, high]. Where 1 / d is infinite (values below 1e-38) v may be, or no number.
int truncate(float v, int high) {
  if (!(v > 0)) return 0;
  return v < static_cast<float>(high) ? static_cast<int>(v) : high;
}

int8_t to_q8(float v) {
  if (!(v > -127)) return v <= -127 ? -127 : 0;
  return v < 127 ? static_cast<int8_t>(std::round(v)) : 127;
}

// The 32 levels as nibbles, and what of them is above 15 as a word of fifth bits.
template <typename Block>
void put_levels(const int* q, Block* b) {
  for (int j = 0; j < QK / 2; ++j) {
    b->qs[j] = static_cast<uint8_t>((q[j] & 15) | ((q[j + QK / 2] & 15) << 4));
  }
  if constexpr (requires { b->qh; }) {
    uint32_t high = 0;
    for (int j = 0; j < QK; ++j) high |= static_cast<uint32_t>(q[j] >> 4) << j;
    std::memcpy(b->qh, &high, sizeof b->qh);
  }
}

template <typename Block>
void quantize_signed(const float* x, int64_t n, uint8_t* blocks, int n_levels) {
  const float zero = static_cast<float>(n_levels / 2);
  for (int64_t i = 0; i < n / QK; ++i, x += QK, blocks += sizeof(Block)) {
    const float d = extreme(x) / -zero, id = inverse(d);
    int q[QK];
    for (int j = 0; j < QK; ++j) q[j] = truncate(x[j] * id + (zero + 0.5f), n_levels - 1);
    Block b;
    b.d = float_to_half(d);
    put_levels(q, &b);
    std::memcpy(blocks, &b, sizeof b);
  }
}

template <typename Block>
void quantize_from_min(const float* x, int64_t n, uint8_t* blocks, int n_levels) {
  for (int64_t i = 0; i < n / QK; ++i, x += QK, blocks += sizeof(Block)) {
    const auto [low, high] = std::minmax_element(x, x + QK);
    const float min = *low, d = (*high - min) / static_cast<float>(n_levels - 1), id = inverse(d);
    int q[QK];
    for (int j = 0; j < QK; ++j) q[j] = truncate((x[j] - min) * id + 0.5f, n_levels - 1);
    Block b;
    b.d = float_to_half(d);
    b.m = float_to_half(min);
    put_levels(q, &b);
    std::memcpy(blocks, &b, sizeof b);
  }
}

// How many levels the extreme value spans in the tries of a weighted search. Where columns differ, the best step is often one that
// cuts off an extreme value which hardly counts, and it may lie on the side that has a level less: hence up to two fifths
// more of them, on either side.
template <int kHighest>
constexpr auto kWidths = [] {
  constexpr int kTries = 21;
  std::array<float, 2 * kTries> widths{};
  for (int t = 0; t < kTries; ++t) {
    const float more = static_cast<float>(kHighest) * 0.025f * static_cast<float>(t - 4);
    widths[static_cast<size_t>(t)] = static_cast<float>(kHighest + 1) + more;
    widths[static_cast<size_t>(kTries + t)] = -(static_cast<float>(kHighest) + more);
  }
  return widths;
}();

template <typename Block, int kLevels>
void fit_signed(const float* x, const float* weight, uint8_t* block) {
  constexpr LevelRange kRange{-kLevels / 2, kLevels / 2 - 1};
  const float found = search_scale(x, weight, QK, kRange, kWidths<kLevels / 2 - 1>);
  Block b;
  b.d = float_to_half(refine_scale(x, weight, QK, kRange, found));
  const float d = half_to_float(b.d);
  int q[QK];
  for (int j = 0; j < QK; ++j) q[j] = (d != 0 ? nearest_level(x[j] / d, kRange.low, kRange.high) : 0) - kRange.low;
  put_levels(q, &b);
  std::memcpy(block, &b, sizeof b);
}

template <typename Block, int kLevels>
void fit_from_min(const float* x, const float* weight, uint8_t* block) {
  // As far to either side as the k-quants' searches, and on to steps that cut off more.
  constexpr AffineSearch kSearch{kLevels, 40, -1.0f, true, true};
  const Affine a = refine_affine(x, weight, kSearch, search_affine(x, weight, kSearch));
  Block b;
  b.d = float_to_half(a.scale);
  b.m = float_to_half(a.min);
  const float d = half_to_float(b.d), min = half_to_float(b.m);
  int q[QK];
  for (int j = 0; j < QK; ++j) q[j] = d != 0 ? nearest_level((x[j] - min) / d, 0, kLevels - 1) : 0;
  put_levels(q, &b);
  std::memcpy(block, &b, sizeof b);
}

}  // namespace

void quantize_file_row_q4_0(const float* x, int64_t n, uint8_t* blocks) {
  quantize_signed<block_q4_0>(x, n, blocks, 16);
}
void quantize_file_row_q5_0(const float* x, int64_t n, uint8_t* blocks) {
  quantize_signed<block_q5_0>(x, n, blocks, 32);
}
void quantize_file_row_q4_1(const float* x, int64_t n, uint8_t* blocks) {
  quantize_from_min<block_q4_1>(x, n, blocks, 16);
}
void quantize_file_row_q5_1(const float* x, int64_t n, uint8_t* blocks) {
  quantize_from_min<block_q5_1>(x, n, blocks, 32);
}

void improve_file_row_q4_0(const float* x, const float* weight, int64_t n, uint8_t* blocks) {
  keep_better(GgmlType::kQ4_0, fit_signed<block_q4_0, 16>, x, weight, n, blocks);
}
void improve_file_row_q5_0(const float* x, const float* weight, int64_t n, uint8_t* blocks) {
  keep_better(GgmlType::kQ5_0, fit_signed<block_q5_0, 32>, x, weight, n, blocks);
}
void improve_file_row_q4_1(const float* x, const float* weight, int64_t n, uint8_t* blocks) {
  keep_better(GgmlType::kQ4_1, fit_from_min<block_q4_1, 16>, x, weight, n, blocks);
}
void improve_file_row_q5_1(const float* x, const float* weight, int64_t n, uint8_t* blocks) {
  keep_better(GgmlType::kQ5_1, fit_from_min<block_q5_1, 32>, x, weight, n, blocks);
}

void quantize_file_row_q8_0(const float* x, int64_t n, uint8_t* blocks) {
  for (int64_t i = 0; i < n / QK; ++i, x += QK, blocks += sizeof(block_q8_0)) {
    const float d = std::fabs(extreme(x)) / 127.0f, id = inverse(d);
    block_q8_0 b;
    b.d = float_to_half(d);
    for (int j = 0; j < QK; ++j) b.qs[j] = to_q8(x[j] * id);
    std::memcpy(blocks, &b, sizeof b);
  }
}

}  // namespace tandem
