// Scalar quantizers, each value to the nearest level: for tests, tools and the random model. Scales
// are rounded to half first, so that the levels searched are the levels stored.
#include <math.h>
#include <string.h>

#include "kernels/quant_blocks.h"
#include "kernels/quant_rows.h"
#include "kernels/quant_traits.h"

namespace tandem {
namespace {

// Nearest integer to v in [low, high]; NaN gives low.
int nearest(float v, int low, int high) {
  if (!(v > static_cast<float>(low))) return low;
  if (v >= static_cast<float>(high)) return high;
  return static_cast<int>(lrintf(v));
}

float inverse(float d) { return d != 0 ? 1.0f / d : 0.0f; }

void put_half(uint8_t* p, int64_t i, uint16_t h) { memcpy(p + 2 * i, &h, sizeof h); }

// The value of largest magnitude, with its sign.
float extreme(const float* x) {
  float best = 0;
  for (int i = 0; i < QK; ++i) {
    if (fabsf(x[i]) > fabsf(best)) best = x[i];
  }
  return best;
}

}  // namespace

void quantize_row_f32(const float* x, int64_t n, uint8_t* blocks) {
  memcpy(blocks, x, static_cast<size_t>(n) * sizeof(float));
}

void quantize_row_f16(const float* x, int64_t n, uint8_t* blocks) {
  for (int64_t i = 0; i < n; ++i) put_half(blocks, i, float_to_half(x[i]));
}

void quantize_row_bf16(const float* x, int64_t n, uint8_t* blocks) {
  for (int64_t i = 0; i < n; ++i) put_half(blocks, i, float_to_bf16(x[i]));
}

void quantize_row_q4_0(const float* x, int64_t n, uint8_t* blocks) {
  for (int64_t i = 0; i < n / QK; ++i, x += QK, blocks += sizeof(block_q4_0)) {
    block_q4_0 b;
    b.d =
        float_to_half(extreme(x) / -8.0f);  // the extreme value gets the level -8, which has no +8
    const float id = inverse(half_to_float(b.d));
    for (int j = 0; j < 16; ++j) {
      const int low = nearest(x[j] * id + 8.0f, 0, 15);
      const int high = nearest(x[j + 16] * id + 8.0f, 0, 15);
      b.qs[j] = static_cast<uint8_t>(low | (high << 4));
    }
    memcpy(blocks, &b, sizeof b);
  }
}

void quantize_row_q4_1(const float* x, int64_t n, uint8_t* blocks) {
  for (int64_t i = 0; i < n / QK; ++i, x += QK, blocks += sizeof(block_q4_1)) {
    float low = x[0], high = x[0];
    for (int j = 1; j < QK; ++j) {
      low = fminf(low, x[j]);
      high = fmaxf(high, x[j]);
    }
    block_q4_1 b;
    b.d = float_to_half((high - low) / 15.0f);
    b.m = float_to_half(low);
    const float id = inverse(half_to_float(b.d)), m = half_to_float(b.m);
    for (int j = 0; j < 16; ++j) {
      const int q0 = nearest((x[j] - m) * id, 0, 15);
      const int q1 = nearest((x[j + 16] - m) * id, 0, 15);
      b.qs[j] = static_cast<uint8_t>(q0 | (q1 << 4));
    }
    memcpy(blocks, &b, sizeof b);
  }
}

void quantize_row_q8_0(const float* x, int64_t n, uint8_t* blocks) {
  for (int64_t i = 0; i < n / QK; ++i, x += QK, blocks += sizeof(block_q8_0)) {
    block_q8_0 b;
    b.d = float_to_half(fabsf(extreme(x)) / 127.0f);
    const float id = inverse(half_to_float(b.d));
    for (int j = 0; j < QK; ++j) b.qs[j] = static_cast<int8_t>(nearest(x[j] * id, -127, 127));
    memcpy(blocks, &b, sizeof b);
  }
}

}  // namespace tandem
