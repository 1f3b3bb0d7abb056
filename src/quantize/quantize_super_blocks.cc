// The k-quants: a scale (and minimum) for each small block, themselves stored as 6 or 8 bits of the super-block's.
//
// DESIGN. The plain scale (extreme / highest level) spends the levels on one outlier. So several step widths are tried; for each
// the values are rounded, and the scale that then has the least weighted squared error follows in closed form. The
// weights favour large values, which move a dot product most. Method and numbers of tries are those of llama.cpp's k-quants, so that
// the files are as good as theirs (tests/quantize compares errors with plain rounding).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/quant_blocks.h"
#include "kernels/quant_traits.h"
#include "quantize/row_quantizers.h"

namespace tandem {

namespace {

constexpr int kSmall = 16;           // values a block of Q6_K
constexpr float kNothing = 1e-15f;   // a block whose values are all below is zero

// Where a step is below 1e-38 v may be infinite, or no number, which gives low.
int nearest(float v, int low, int high) {
  if (!(v > static_cast<float>(low))) return low;
  return v < static_cast<float>(high) ? static_cast<int>(std::lrintf(v)) : high;
}

// value = scale * level + min, min <= 0 <= scale.
struct Affine {
  float scale = 0, min = 0;
};

struct Tries {
  int n;
  float first;  // added to the highest level in the first try; each next try adds 0.1
};

// Least squares over scale and min for given levels; false where all levels are equal.
bool fit(const float* x, const float* weight, const int* level, Affine* out) {
  float sw = 0, sx = 0, sl = 0, sll = 0, sxl = 0;
  for (int i = 0; i < QK; ++i) {
    const float l = static_cast<float>(level[i]), w = weight[i];
    sw += w;
    sx += w * x[i];
    sl += w * l;
    sll += w * l * l;
    sxl += w * x[i] * l;
  }
  const float determinant = sw * sll - sl * sl;
  if (!(determinant > 0)) return false;
  out->scale = (sw * sxl - sx * sl) / determinant;
  out->min = (sll * sx - sl * sxl) / determinant;
  if (out->min > 0) *out = {sxl / sll, 0};
  return true;
}

float weighted_error(const float* x, const float* weight, const int* level, const Affine& a) {
  float sum = 0;
  for (int i = 0; i < QK; ++i) {
    const float difference = a.scale * static_cast<float>(level[i]) + a.min - x[i];
    sum += weight[i] * difference * difference;
  }
  return sum;
}

Affine search_affine(const float* x, int n_levels, Tries tries) {
  float energy = 0;
  for (int i = 0; i < QK; ++i) energy += x[i] * x[i];
  const float rms = std::sqrt(energy / QK);
  float weight[QK];
  for (int i = 0; i < QK; ++i) weight[i] = rms + std::fabs(x[i]);

  const float low = std::min(0.0f, *std::min_element(x, x + QK));
  const float high = *std::max_element(x, x + QK);
  if (!(high > low)) return {0, low};  // one value, not above zero
  const int top = n_levels - 1;
  Affine best{(high - low) / static_cast<float>(top), low};
  float least = INFINITY;
  for (int t = -1; t <= tries.n; ++t) {  // -1: the plain step, judged as it is
    const float more = t < 0 ? 0 : tries.first + 0.1f * static_cast<float>(t);
    const float steps = (static_cast<float>(top) + more) / (high - low);
    int level[QK];
    for (int i = 0; i < QK; ++i) level[i] = nearest(steps * (x[i] - low), 0, top);
    Affine a = best;
    if (t >= 0 && (!fit(x, weight, level, &a) || !(a.scale > 0))) continue;
    const float error = weighted_error(x, weight, level, a);
    if (error < least) best = a, least = error;
  }
  return best;
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

// Q4_K and Q5_K but for how the levels are packed.
SuperBlock quantize_super_block(const float* x, int n_levels, Tries tries) {
  constexpr int kBlocks = QK_K / QK;
  Affine found[kBlocks];
  float max_scale = 0, max_min = 0;
  for (int j = 0; j < kBlocks; ++j) {
    found[j] = search_affine(x + QK * j, n_levels, tries);
    max_scale = std::max(max_scale, found[j].scale);
    max_min = std::max(max_min, -found[j].min);
  }
  SuperBlock s;
  s.d = float_to_half(max_scale / 63);
  s.dmin = float_to_half(max_min / 63);
  const float d = half_to_float(s.d), dmin = half_to_float(s.dmin);
  int scale[kBlocks], min[kBlocks];
  for (int j = 0; j < kBlocks; ++j) {
    scale[j] = max_scale > 0 ? nearest(found[j].scale * (63 / max_scale), 0, 63) : 0;
    min[j] = max_min > 0 ? nearest(-found[j].min * (63 / max_min), 0, 63) : 0;
    const float step = d * static_cast<float>(scale[j]), shift = dmin * static_cast<float>(min[j]);
    if (!(step > 0)) continue;
    for (int i = QK * j; i < QK * (j + 1); ++i) {
      s.level[i] = nearest((x[i] + shift) / step, 0, n_levels - 1);
    }
  }
  put_scales_k4(scale, min, s.scales);
  return s;
}

// Scale of 16 values with levels -32..31; its sign is that which gives the extreme value the level -32.
float search_scale(const float* x) {
  float extreme = 0;
  for (int i = 0; i < kSmall; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  if (std::fabs(extreme) < kNothing) return 0;
  float best = 0, most = 0;
  for (int t = 0; t <= 18; ++t) {
    const int delta = t == 0 ? 0 : t <= 9 ? t - 10 : t - 9;  // the plain width first: it wins a tie
    const float steps = -(32 + 0.1f * static_cast<float>(delta)) / extreme;
    float sxl = 0, sll = 0;
    for (int i = 0; i < kSmall; ++i) {
      const float l = static_cast<float>(nearest(steps * x[i], -32, 31)), w = x[i] * x[i];
      sxl += w * x[i] * l;
      sll += w * l * l;
    }
    // The squared error of the best scale for these levels is a constant minus sxl^2 / sll.
    if (sll > 0 && sxl * sxl > most * sll) best = sxl / sll, most = sxl * best;
  }
  return best;
}

}  // namespace

void quantize_file_row_q4_k(const float* x, int64_t n, uint8_t* blocks) {
  for (int64_t i = 0; i < n / QK_K; ++i, x += QK_K, blocks += sizeof(block_q4_K)) {
    const SuperBlock s = quantize_super_block(x, 16, {20, -1.0f});
    block_q4_K b;
    b.d = s.d, b.dmin = s.dmin;
    std::memcpy(b.scales, s.scales, sizeof b.scales);
    for (int j = 0; j < QK_K / 2; ++j) {
      const int* level = s.level + 2 * QK * (j / QK) + j % QK;
      b.qs[j] = static_cast<uint8_t>(level[0] | (level[QK] << 4));
    }
    std::memcpy(blocks, &b, sizeof b);
  }
}

void quantize_file_row_q5_k(const float* x, int64_t n, uint8_t* blocks) {
  for (int64_t i = 0; i < n / QK_K; ++i, x += QK_K, blocks += sizeof(block_q5_K)) {
    const SuperBlock s = quantize_super_block(x, 32, {15, -0.5f});
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
    std::memcpy(blocks, &b, sizeof b);
  }
}

void quantize_file_row_q6_k(const float* x, int64_t n, uint8_t* blocks) {
  for (int64_t i = 0; i < n / QK_K; ++i, x += QK_K, blocks += sizeof(block_q6_K)) {
    constexpr int kBlocks = QK_K / kSmall;
    float scale[kBlocks], largest = 0;
    for (int j = 0; j < kBlocks; ++j) {
      scale[j] = search_scale(x + kSmall * j);
      if (std::fabs(scale[j]) > std::fabs(largest)) largest = scale[j];
    }
    block_q6_K b = {};
    if (std::fabs(largest) >= kNothing) {
      const float steps = -128 / largest;
      b.d = float_to_half(1 / steps);
      const float d = half_to_float(b.d);
      for (int j = 0; j < QK_K; ++j) {
        int8_t& stored = b.scales[j / kSmall];
        stored = static_cast<int8_t>(nearest(steps * scale[j / kSmall], -128, 127));
        const float step = d * static_cast<float>(stored);
        const int q = (step != 0 ? nearest(x[j] / step, -32, 31) : 0) + 32;
        const int half = j / 128, plane = j % 128 / 32, l = j % 32;
        uint8_t& low = b.ql[64 * half + 32 * (plane % 2) + l];
        low = static_cast<uint8_t>(low | ((q & 15) << (plane < 2 ? 0 : 4)));
        uint8_t& high = b.qh[32 * half + l];
        high = static_cast<uint8_t>(high | ((q >> 4) << (2 * plane)));
      }
    }
    std::memcpy(blocks, &b, sizeof b);
  }
}

}  // namespace tandem
