// Reference of the ops on rows of floats, in double precision.
#include <math.h>

#include "kernels/columns.h"

namespace tandem::ref {

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const double scale = 1.0 / sqrt(sum / static_cast<double>(n) + static_cast<double>(eps));
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(static_cast<double>(x[i]) * scale * static_cast<double>(weight[i]));
  }
}

void rope(float* x, int n_heads, int head_dim, int rope_dim, const float* cos_sin, bool neox) {
  const int half = rope_dim / 2;
  for (int h = 0; h < n_heads; ++h, x += head_dim) {
    for (int i = 0; i < half; ++i) {
      const int first = neox ? i : 2 * i, second = neox ? i + half : 2 * i + 1;
      const double c = static_cast<double>(cos_sin[2 * i]),
                   s = static_cast<double>(cos_sin[2 * i + 1]);
      const double a = static_cast<double>(x[first]), b = static_cast<double>(x[second]);
      x[first] = static_cast<float>(a * c - b * s);
      x[second] = static_cast<float>(a * s + b * c);
    }
  }
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(gate[i]);
    out[i] = static_cast<float>(g / (1.0 + exp(-g)) * static_cast<double>(up[i]));
  }
}

void gelu_tanh_mul(const float* gate, const float* up, int64_t n, float* out) {
  constexpr double kSqrt2OverPi = 0.79788456080286535588;
  for (int64_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(gate[i]);
    const double gelu = 0.5 * g * (1.0 + tanh(kSqrt2OverPi * (g + 0.044715 * g * g * g)));
    out[i] = static_cast<float>(gelu * static_cast<double>(up[i]));
  }
}

void add(const float* x, int64_t n, float* inout) {
  for (int64_t i = 0; i < n; ++i) inout[i] += x[i];
}

double log_sum_exp(const float* x, int64_t n) {
  float max = -INFINITY;
  for (int64_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  if (max == -INFINITY) return static_cast<double>(max);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += exp(static_cast<double>(x[i]) - static_cast<double>(max));
  return static_cast<double>(max) + log(sum);
}

}  // namespace tandem::ref
