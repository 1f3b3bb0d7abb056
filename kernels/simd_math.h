// exp and tanh in the words of a simd_<isa>.h, which is included before this file. Internal
// linkage.
#pragma once

namespace tandem {
namespace {
namespace simd {

// e^x, relative error below 2^-22 over the normal range (tests/kernels/rows_test.cc holds it to
// that); exp(0) is exactly 1; below -104 it is 0, above 88.73 infinity; NaN stays NaN. Range
// reduction by ln 2 in two parts and the polynomial of Cephes' expf.
TANDEM_SIMD Vec exp(Vec x) {
  x = min(splat(100.0f), max(splat(-104.0f), x));
  const Vec n = round(mul(x, splat(1.44269504f)));
  Vec r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(mul(p, r), r, r);
  return scale_by_power(add(p, splat(1.0f)), n);
}

// 2^x for x <= 0, relative error below 2^-22 over the normal range (tests/kernels/attention_test.cc
// holds it to that); 2^0 is exactly 1; results below 2^-126 may be 0, and at -160 they are; NaN stays
// NaN. The polynomial of Cephes' exp2f: two thirds of exp's operations.
TANDEM_SIMD Vec exp2_down(Vec x) {
  x = max(splat(kLowestPower), x);
  const Vec n = round(x);
  const Vec r = sub(x, n);
  Vec p = splat(1.535336188e-4f);
  p = fma(p, r, splat(1.339887440e-3f));
  p = fma(p, r, splat(9.618437357e-3f));
  p = fma(p, r, splat(5.550332471e-2f));
  p = fma(p, r, splat(2.402264791e-1f));
  p = fma(p, r, splat(6.931472029e-1f));
  return scale_down(fma(p, r, splat(1.0f)), n);
}

// 1 - 2 / (e^2x + 1): absolute error below 2^-21.
TANDEM_SIMD Vec tanh(Vec x) {
  const Vec e = exp(mul(splat(2.0f), x));
  return sub(splat(1.0f), div(splat(2.0f), add(e, splat(1.0f))));
}

}  // namespace simd
}  // namespace
}  // namespace tandem
