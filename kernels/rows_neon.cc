// rows_body.h for this column.
// clang-format off
#include "kernels/simd_neon.h"  // first: the body is written in its words
#include "kernels/columns.h"
#include "kernels/rows_body.h"
// clang-format on

namespace tandem::neon {

void quantize_act(const float* x, int64_t n_cols, uint8_t* act) {
  rows::quantize_act(x, n_cols, act);
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  rows::rms_norm(x, weight, eps, n, out);
}

void rope(float* x, int n_heads, int head_dim, int rope_dim, const float* cos_sin, bool neox) {
  rows::rope(x, n_heads, head_dim, rope_dim, cos_sin, neox);
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  rows::silu_mul(gate, up, n, out);
}

void gelu_tanh_mul(const float* gate, const float* up, int64_t n, float* out) {
  rows::gelu_tanh_mul(gate, up, n, out);
}

void add(const float* x, int64_t n, float* inout) { rows::add(x, n, inout); }

double log_sum_exp(const float* x, int64_t n) { return rows::log_sum_exp(x, n); }

}  // namespace tandem::neon
