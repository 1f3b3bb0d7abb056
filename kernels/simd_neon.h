// The vector words that rows_body.h and attention_body.h are written in, for baseline ARMv8-A NEON. Internal
// linkage.
#pragma once

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

namespace tandem {
namespace {
namespace simd {

#define TANDEM_SIMD static inline __attribute__((always_inline))

constexpr int kWide =
    4;  // vectors a row of accumulators may take: four rows of them, keys and a splat fit 32 registers
constexpr int kLanes = 4;
using Vec = float32x4_t;

// All ones in the first n lanes.
TANDEM_SIMD uint32x4_t first(int64_t n) {
  const int32_t count = static_cast<int32_t>(n > 4 ? 4 : n);
  const int32_t index[4] = {0, 1, 2, 3};
  return vcgtq_s32(vdupq_n_s32(count), vld1q_s32(index));
}
TANDEM_SIMD Vec zero() { return vdupq_n_f32(0.0f); }
TANDEM_SIMD Vec splat(float x) { return vdupq_n_f32(x); }
TANDEM_SIMD Vec load(const float* p) { return vld1q_f32(p); }
TANDEM_SIMD void store(float* p, Vec v) { vst1q_f32(p, v); }
// The first n lanes alone; the others load as zero.
TANDEM_SIMD Vec load_first(const float* p, int64_t n) {
  if (n >= kLanes) return vld1q_f32(p);
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return vld1q_f32(lanes);
}
TANDEM_SIMD void store_first(float* p, int64_t n, Vec v) {
  if (n >= kLanes) return vst1q_f32(p, v);
  float lanes[kLanes];
  vst1q_f32(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}
TANDEM_SIMD Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
TANDEM_SIMD Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
TANDEM_SIMD Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
TANDEM_SIMD Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
TANDEM_SIMD Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
TANDEM_SIMD Vec fms(Vec a, Vec b, Vec c) { return vfmaq_f32(vnegq_f32(c), a, b); }
// FMAX would give NaN where either is NaN.
TANDEM_SIMD Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // b where either is NaN
TANDEM_SIMD Vec min(Vec a, Vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }  // b where either is NaN
TANDEM_SIMD Vec round(Vec a) { return vrndnq_f32(a); }
TANDEM_SIMD float first_lane(Vec a) { return vgetq_lane_f32(a, 0); }
TANDEM_SIMD float sum(Vec a) {
  const float32x2_t two = vadd_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
TANDEM_SIMD float largest(Vec a) { return vmaxvq_f32(a); }
// p * 2^n for integral n in -250..250: in two factors, so that results may be subnormal or
// infinite.
TANDEM_SIMD Vec scale_by_power(Vec p, Vec n) {
  const int32x4_t bias = vdupq_n_s32(127);
  const int32x4_t whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1);
  const int32x4_t rest = vsubq_s32(whole, half);
  const Vec a = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
  const Vec b = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
  return vmulq_f32(vmulq_f32(p, a), b);
}
// p * 2^n for integral n <= 0 and above kLowestPower; there it is 0.
constexpr float kLowestPower = -127.0f;
TANDEM_SIMD Vec scale_down(Vec p, Vec n) {
  const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
  return vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}
// Lanes outside [begin, end) become `other`.
TANDEM_SIMD Vec keep(Vec a, int begin, int end, float other) {
  return vbslq_f32(vbicq_u32(first(end), first(begin)), a, vdupq_n_f32(other));
}

TANDEM_SIMD Vec load_half(const uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
TANDEM_SIMD void store_half(uint8_t* p, Vec v) { vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32(v))); }
TANDEM_SIMD Vec load_bf16(const uint8_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
TANDEM_SIMD Vec load_int8(const uint8_t* p) {
  uint32_t bytes;
  memcpy(&bytes, p, sizeof bytes);
  const int16x8_t words = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(bytes)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
}
// Rounded to -127..127; NaN becomes -127, as conversion makes of it elsewhere.
TANDEM_SIMD void store_as_int8(int8_t* p, Vec v) {
  const Vec bounded = max(min(v, splat(127.0f)), splat(-127.0f));
  const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(vbslq_f32(vceqq_f32(v, v), bounded, splat(-127.0f))));
  const int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
  vst1_lane_s32(reinterpret_cast<int32_t*>(p), vreinterpret_s32_s8(bytes), 0);
}

// Even and odd values of the first n pairs at p.
TANDEM_SIMD void load_pairs(const float* p, int64_t n, Vec* even, Vec* odd) {
  const Vec low = load_first(p, 2 * n), high = n > 2 ? load_first(p + 4, 2 * n - 4) : zero();
  *even = vuzp1q_f32(low, high);
  *odd = vuzp2q_f32(low, high);
}
// Adjacent pairs (a, b) turned by adjacent (cos, sin).
TANDEM_SIMD Vec turn_pairs(Vec v, Vec cos_sin) {
  const uint32_t even_sign[4] = {0x80000000u, 0, 0x80000000u, 0};
  const Vec sines = vmulq_f32(vrev64q_f32(v), vtrn2q_f32(cos_sin, cos_sin));
  const Vec turned = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(sines), vld1q_u32(even_sign)));
  return vfmaq_f32(turned, v, vtrn1q_f32(cos_sin, cos_sin));
}

// Running sums in double precision.
struct Doubles {
  float64x2_t half[2];
};
TANDEM_SIMD Doubles no_doubles() { return {{vdupq_n_f64(0), vdupq_n_f64(0)}}; }
TANDEM_SIMD void add_to(Doubles* d, Vec v) {
  d->half[0] = vaddq_f64(d->half[0], vcvt_f64_f32(vget_low_f32(v)));
  d->half[1] = vaddq_f64(d->half[1], vcvt_high_f64_f32(v));
}
TANDEM_SIMD double sum(const Doubles& d) { return vaddvq_f64(vaddq_f64(d.half[0], d.half[1])); }

// Bits of the largest |x| of 32 floats; see quantize_block in rows_body.h.
TANDEM_SIMD uint32_t largest_magnitude_bits(const float* x) {
  const uint32x4_t magnitude = vdupq_n_u32(0x7fffffff);
  uint32x4_t high = vdupq_n_u32(0);
  for (int i = 0; i < 32; i += 4) {
    high = vmaxq_u32(high, vandq_u32(vreinterpretq_u32_f32(load(x + i)), magnitude));
  }
  return vmaxvq_u32(high);
}
// 32 values to the planes of an ActBlock (act_block.h; ref::quantize_act is the same in scalars).
// sums: of value / d in either half, and of the fine bytes.
TANDEM_SIMD void quantize32(const float* x, float inverse, int8_t* coarse, int8_t* fine, int sums[3]) {
  const Vec scale = splat(inverse);
  int32x4_t coarse1[4], coarse2[4], both[4];
  int32x4_t total1 = vdupq_n_s32(0), total2 = vdupq_n_s32(0), total = vdupq_n_s32(0);
  for (int i = 0; i < 4; ++i) {
    const int32x4_t second = vcvtnq_s32_f32(vmulq_f32(load(x + 16 + 4 * i), scale));
    const int32x4_t low = vandq_s32(second, vdupq_n_s32(15));
    const Vec noise = vmulq_f32(vcvtq_f32_s32(low), splat(0.0625f));
    const int32x4_t first = vcvtnq_s32_f32(vsubq_f32(vmulq_f32(load(x + 4 * i), scale), noise));
    coarse1[i] = vshrq_n_s32(vaddq_s32(first, vdupq_n_s32(8)), 4);
    const int32x4_t high = vsubq_s32(first, vshlq_n_s32(coarse1[i], 4));
    coarse2[i] = vsubq_s32(vshrq_n_s32(second, 4), high);
    both[i] = vmaxq_s32(vaddq_s32(vshlq_n_s32(high, 4), low), vdupq_n_s32(-127));
    total1 = vaddq_s32(total1, coarse1[i]);
    total2 = vaddq_s32(total2, coarse2[i]);
    total = vaddq_s32(total, both[i]);
  }
  const auto store = [](int8_t* p, const int32x4_t v[4]) {
    const int16x8_t low = vcombine_s16(vqmovn_s32(v[0]), vqmovn_s32(v[1]));
    const int16x8_t high = vcombine_s16(vqmovn_s32(v[2]), vqmovn_s32(v[3]));
    vst1q_s8(p, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
  };
  store(coarse, coarse1);
  store(coarse + 16, coarse2);
  store(fine, both);
  sums[2] = vaddvq_s32(total);
  sums[0] = 256 * vaddvq_s32(total1) + sums[2];
  sums[1] = 256 * vaddvq_s32(total2) + 16 * sums[2];
}

}  // namespace simd
}  // namespace
}  // namespace tandem
