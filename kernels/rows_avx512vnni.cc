// Ops on rows of floats with AVX-512, and quantizing of activations. Tails are masked, so every length is
// served by one code path.
#include <math.h>
#include <string.h>

#include "kernels/act_block.h"
#include "kernels/columns.h"
#include "kernels/math_avx512vnni.h"

namespace tandem::avx512vnni {
namespace {

// Sum of squares: four vectors in turn, then a fixed tree.
float sum_squares(const float* x, int64_t n) {
  __m512 acc[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512 v = _mm512_loadu_ps(x + i + 16 * j);
      acc[j] = _mm512_fmadd_ps(v, v, acc[j]);
    }
  }
  for (; i < n; i += 16) {
    const __m512 v = _mm512_maskz_loadu_ps(first_lanes(n - i), x + i);
    acc[0] = _mm512_fmadd_ps(v, v, acc[0]);
  }
  return _mm512_reduce_add_ps(
      _mm512_add_ps(_mm512_add_ps(acc[0], acc[1]), _mm512_add_ps(acc[2], acc[3])));
}

// The even (c) and odd (s) values of 32 floats at p; lanes past n pairs are zero.
void deinterleave(const float* p, int64_t n, __m512* c, __m512* s) {
  const __m512 low = _mm512_maskz_loadu_ps(first_lanes(2 * n), p);
  const __m512 high = n > 8 ? _mm512_maskz_loadu_ps(first_lanes(2 * n - 16), p + 16) : _mm512_setzero_ps();
  const __m512i even =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  *c = _mm512_permutex2var_ps(low, even, high);
  *s = _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);
}

void rope_neox(float* x, int half, const float* cos_sin) {
  for (int i = 0; i < half; i += 16) {
    const __mmask16 lanes = first_lanes(half - i);
    __m512 c, s;
    deinterleave(cos_sin + 2 * i, half - i < 16 ? half - i : 16, &c, &s);
    const __m512 a = _mm512_maskz_loadu_ps(lanes, x + i);
    const __m512 b = _mm512_maskz_loadu_ps(lanes, x + half + i);
    _mm512_mask_storeu_ps(x + i, lanes, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
    _mm512_mask_storeu_ps(x + half + i, lanes, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
  }
}

void rope_adjacent(float* x, int rope_dim, const float* cos_sin) {
  for (int i = 0; i < rope_dim; i += 16) {
    const __mmask16 lanes = first_lanes(rope_dim - i);
    const __m512 v = _mm512_maskz_loadu_ps(lanes, x + i);
    const __m512 cs = _mm512_maskz_loadu_ps(lanes, cos_sin + i);
    const __m512 swapped = _mm512_permute_ps(v, 0xb1);
    const __m512 sines = _mm512_mul_ps(swapped, _mm512_movehdup_ps(cs));
    _mm512_mask_storeu_ps(x + i, lanes, _mm512_fmaddsub_ps(v, _mm512_moveldup_ps(cs), sines));
  }
}

// x / (1 + e^-t)
static inline __attribute__((always_inline)) __m512 times_sigmoid(__m512 x, __m512 t) {
  const __m512 e = exp512(_mm512_sub_ps(_mm512_setzero_ps(), t));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

void quantize_block(const float* x, ActBlock* out) {
  const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
  // As integers, magnitudes order like floats, with infinity and NaN on top.
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i a0 = _mm512_and_si512(_mm512_castps_si512(x0), magnitude);
  const __m512i a1 = _mm512_and_si512(_mm512_castps_si512(x1), magnitude);
  const int amax_bits = _mm512_reduce_max_epi32(_mm512_max_epi32(a0, a1));
  float amax;
  memcpy(&amax, &amax_bits, 4);
  const bool finite = amax_bits < 0x7f800000;
  const float inverse = finite && amax > kActTiny ? 127.0f / amax : 0.0f;
  const __mmask16 keep = inverse != 0 ? 0xffff : 0;
  const __m512 scale = _mm512_set1_ps(inverse);
  const __m512i q0 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x0, scale));
  const __m512i q1 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x1, scale));
  _mm_store_si128(reinterpret_cast<__m128i*>(out->qs), _mm512_cvtepi32_epi8(q0));
  _mm_store_si128(reinterpret_cast<__m128i*>(out->qs + 16), _mm512_cvtepi32_epi8(q1));
  const int sum0 = _mm512_reduce_add_epi32(q0), sum1 = _mm512_reduce_add_epi32(q1);
  out->d = !finite ? NAN : inverse != 0 ? amax / 127.0f : 0.0f;
  out->s = out->d * static_cast<float>(sum0 + sum1);
  out->c8 = -8 * (sum0 + sum1);
  out->c16 = -16 * (sum0 + sum1);
  out->c128 = -128 * (sum0 + sum1);
  out->c32[0] = -32 * sum0;
  out->c32[1] = -32 * sum1;
  out->unused = 0;
}

}  // namespace

void quantize_act(const float* x, int64_t n_cols, uint8_t* act) {
  auto* blocks = reinterpret_cast<ActBlock*>(act);
  for (int64_t b = 0; b < n_cols / QK; ++b) quantize_block(x + b * QK, blocks + b);
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float mean = sum_squares(x, n) / static_cast<float>(n);
  const __m512 scale = _mm512_set1_ps(1.0f / sqrtf(mean + eps));
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), scale);
    _mm512_mask_storeu_ps(out + i, lanes,
                          _mm512_mul_ps(v, _mm512_maskz_loadu_ps(lanes, weight + i)));
  }
}

void rope(float* x, int n_heads, int head_dim, int rope_dim, const float* cos_sin, bool neox) {
  for (int h = 0; h < n_heads; ++h, x += head_dim) {
    if (neox) {
      rope_neox(x, rope_dim / 2, cos_sin);
    } else {
      rope_adjacent(x, rope_dim, cos_sin);
    }
  }
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m512 g = _mm512_maskz_loadu_ps(lanes, gate + i);
    const __m512 u = _mm512_maskz_loadu_ps(lanes, up + i);
    _mm512_mask_storeu_ps(out + i, lanes, _mm512_mul_ps(times_sigmoid(g, g), u));
  }
}

void gelu_tanh_mul(const float* gate, const float* up, int64_t n, float* out) {
  // 0.5 g (1 + tanh t) = g * sigmoid(2 t), t = sqrt(2/pi) (g + 0.044715 g^3)
  const __m512 linear = _mm512_set1_ps(1.59576912f), cubic = _mm512_set1_ps(0.0713548163f);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m512 g = _mm512_maskz_loadu_ps(lanes, gate + i);
    const __m512 u = _mm512_maskz_loadu_ps(lanes, up + i);
    const __m512 t = _mm512_mul_ps(g, _mm512_fmadd_ps(_mm512_mul_ps(g, g), cubic, linear));
    _mm512_mask_storeu_ps(out + i, lanes, _mm512_mul_ps(times_sigmoid(g, t), u));
  }
}

void add(const float* x, int64_t n, float* inout) {
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m512 sum =
        _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, inout + i), _mm512_maskz_loadu_ps(lanes, x + i));
    _mm512_mask_storeu_ps(inout + i, lanes, sum);
  }
}

double log_sum_exp(const float* x, int64_t n) {
  __m512 high = _mm512_set1_ps(-INFINITY);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first_lanes(n - i);
    high = _mm512_mask_max_ps(high, lanes, high, _mm512_maskz_loadu_ps(lanes, x + i));
  }
  const float max = _mm512_reduce_max_ps(high);
  if (max == -INFINITY) return static_cast<double>(max);
  __m512d sums[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m512 v = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + i), _mm512_set1_ps(max));
    const __m512 e = _mm512_maskz_mov_ps(lanes, exp512(v));
    sums[0] = _mm512_add_pd(sums[0], _mm512_cvtps_pd(_mm512_castps512_ps256(e)));
    sums[1] = _mm512_add_pd(sums[1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(e, 1)));
  }
  return static_cast<double>(max) + log(_mm512_reduce_add_pd(_mm512_add_pd(sums[0], sums[1])));
}

}  // namespace tandem::avx512vnni
