// Ops on rows of floats and quantizing of activations, once for all vector columns: rows_<isa>.cc
// includes its simd_<isa>.h, then this. Tails are masked, so every length is served by one path.
// Signatures and meaning: kernel_table.h.
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/act_block.h"
#include "kernels/simd_math.h"

namespace tandem {
namespace {
namespace rows {

using simd::kLanes;
using simd::Vec;

// Four vectors in turn, then a fixed tree.
float sum_squares(const float* x, int64_t n) {
  Vec acc[4] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Vec v = simd::load(x + i + kLanes * j);
      acc[j] = simd::fma(v, v, acc[j]);
    }
  }
  for (; i < n; i += kLanes) {
    const Vec v = simd::load_first(x + i, n - i);
    acc[0] = simd::fma(v, v, acc[0]);
  }
  return simd::sum(simd::add(simd::add(acc[0], acc[1]), simd::add(acc[2], acc[3])));
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float mean = sum_squares(x, n) / static_cast<float>(n);
  const Vec scale = simd::splat(1.0f / sqrtf(mean + eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec v = simd::mul(simd::load_first(x + i, n - i), scale);
    simd::store_first(out + i, n - i, simd::mul(v, simd::load_first(weight + i, n - i)));
  }
}

void rope_halves(float* x, int half, const float* cos_sin) {
  for (int i = 0; i < half; i += kLanes) {
    const int n = half - i < kLanes ? half - i : kLanes;
    Vec c, s;
    simd::load_pairs(cos_sin + 2 * i, n, &c, &s);
    const Vec a = simd::load_first(x + i, n), b = simd::load_first(x + half + i, n);
    simd::store_first(x + i, n, simd::fms(a, c, simd::mul(b, s)));
    simd::store_first(x + half + i, n, simd::fma(b, c, simd::mul(a, s)));
  }
}

void rope_adjacent(float* x, int rope_dim, const float* cos_sin) {
  for (int i = 0; i < rope_dim; i += kLanes) {
    const int n = rope_dim - i;
    const Vec turned =
        simd::turn_pairs(simd::load_first(x + i, n), simd::load_first(cos_sin + i, n));
    simd::store_first(x + i, n, turned);
  }
}

void rope(float* x, int n_heads, int head_dim, int rope_dim, const float* cos_sin, bool neox) {
  for (int h = 0; h < n_heads; ++h, x += head_dim) {
    if (neox) {
      rope_halves(x, rope_dim / 2, cos_sin);
    } else {
      rope_adjacent(x, rope_dim, cos_sin);
    }
  }
}

// x / (1 + e^-t)
TANDEM_SIMD Vec times_sigmoid(Vec x, Vec t) {
  return simd::div(x, simd::add(simd::splat(1.0f), simd::exp(simd::sub(simd::zero(), t))));
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec g = simd::load_first(gate + i, n - i), u = simd::load_first(up + i, n - i);
    simd::store_first(out + i, n - i, simd::mul(times_sigmoid(g, g), u));
  }
}

void gelu_tanh_mul(const float* gate, const float* up, int64_t n, float* out) {
  // 0.5 g (1 + tanh t) = g * sigmoid(2 t), t = sqrt(2/pi) (g + 0.044715 g^3)
  const Vec linear = simd::splat(1.59576912f), cubic = simd::splat(0.0713548163f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec g = simd::load_first(gate + i, n - i), u = simd::load_first(up + i, n - i);
    const Vec t = simd::mul(g, simd::fma(simd::mul(g, g), cubic, linear));
    simd::store_first(out + i, n - i, simd::mul(times_sigmoid(g, t), u));
  }
}

void add(const float* x, int64_t n, float* inout) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec total = simd::add(simd::load_first(inout + i, n - i), simd::load_first(x + i, n - i));
    simd::store_first(inout + i, n - i, total);
  }
}

double log_sum_exp(const float* x, int64_t n) {
  Vec high = simd::splat(-INFINITY);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int valid = static_cast<int>(n - i < kLanes ? n - i : kLanes);
    high = simd::max(high, simd::keep(simd::load_first(x + i, valid), 0, valid, -INFINITY));
  }
  const float max = simd::largest(high);
  if (max == -INFINITY) return static_cast<double>(max);
  simd::Doubles sums = simd::no_doubles();
  for (int64_t i = 0; i < n; i += kLanes) {
    const int valid = static_cast<int>(n - i < kLanes ? n - i : kLanes);
    const Vec e = simd::exp(simd::sub(simd::load_first(x + i, valid), simd::splat(max)));
    simd::add_to(&sums, simd::keep(e, 0, valid, 0.0f));
  }
  return static_cast<double>(max) + log(simd::sum(sums));
}

void quantize_block(const float* x, ActBlock* out) {
  // As integers, magnitudes order like floats, with infinity and NaN on top.
  const uint32_t amax_bits = simd::largest_magnitude_bits(x);
  float amax;
  memcpy(&amax, &amax_bits, 4);
  const bool finite = amax_bits < 0x7f800000;
  int sum[3] = {0, 0, 0};  // of both halves, and of the fine bytes
  if (finite && amax > kActTiny) {
    out->d = amax / kActSteps * 0.0625f;
    simd::quantize32(x, kActSteps / amax, out->coarse, out->fine, sum);
  } else {
    out->d = finite ? 0.0f : NAN;
    memset(out->coarse, 0, sizeof out->coarse);
    memset(out->fine, 0, sizeof out->fine);
  }
  const int both = sum[0] + sum[1];
  out->s = out->d * static_cast<float>(both);
  out->c8 = -8 * both;
  out->c16 = -16 * both;
  out->c128 = -128 * both;
  out->c32[0] = -32 * sum[0];
  out->c32[1] = -32 * sum[1];
  out->fine_128 = 128 * sum[2];
}

void quantize_act(const float* x, int64_t n_cols, uint8_t* act) {
  auto* blocks = reinterpret_cast<ActBlock*>(act);
  for (int64_t b = 0; b < n_cols / QK; ++b) quantize_block(x + b * QK, blocks + b);
}

}  // namespace rows
}  // namespace
}  // namespace tandem
