// The vector words that rows_body.h and attention_body.h are written in, for AVX-512. Internal
// linkage.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace tandem {
namespace {
namespace simd {

#define TANDEM_SIMD static inline __attribute__((always_inline))

constexpr int kWide =
    4;  // vectors a row of accumulators may take: four rows of them fit the registers
constexpr int kLanes = 16;
using Vec = __m512;

TANDEM_SIMD __mmask16 first(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffffu : n > 0 ? (1u << n) - 1 : 0);
}
TANDEM_SIMD Vec zero() { return _mm512_setzero_ps(); }
TANDEM_SIMD Vec splat(float x) { return _mm512_set1_ps(x); }
TANDEM_SIMD Vec load(const float* p) { return _mm512_loadu_ps(p); }
TANDEM_SIMD void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
// The first n lanes alone; the others load as zero.
TANDEM_SIMD Vec load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
TANDEM_SIMD void store_first(float* p, int64_t n, Vec v) { _mm512_mask_storeu_ps(p, first(n), v); }
TANDEM_SIMD Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
TANDEM_SIMD Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
TANDEM_SIMD Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
TANDEM_SIMD Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
TANDEM_SIMD Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
TANDEM_SIMD Vec fms(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }
TANDEM_SIMD Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b where either is NaN
TANDEM_SIMD Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }  // b where either is NaN
TANDEM_SIMD Vec round(Vec a) { return _mm512_roundscale_ps(a, 8); }
TANDEM_SIMD float sum(Vec a) { return _mm512_reduce_add_ps(a); }
TANDEM_SIMD float largest(Vec a) { return _mm512_reduce_max_ps(a); }
TANDEM_SIMD float first_lane(Vec a) { return _mm512_cvtss_f32(a); }
// p * 2^n for integral n.
TANDEM_SIMD Vec scale_by_power(Vec p, Vec n) { return _mm512_scalef_ps(p, n); }
// p * 2^n for integral n <= 0; at kLowestPower and below it is 0.
constexpr float kLowestPower = -160.0f;
TANDEM_SIMD Vec scale_down(Vec p, Vec n) { return _mm512_scalef_ps(p, n); }
// Lanes outside [begin, end) become `other`.
TANDEM_SIMD Vec keep(Vec a, int begin, int end, float other) {
  const __mmask16 lanes = static_cast<__mmask16>(first(end) & ~first(begin));
  return _mm512_mask_mov_ps(_mm512_set1_ps(other), lanes, a);
}

TANDEM_SIMD Vec load_half(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TANDEM_SIMD void store_half(uint8_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
TANDEM_SIMD Vec load_bf16(const uint8_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
TANDEM_SIMD Vec load_int8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// Rounded to -127..127; NaN becomes -127.
TANDEM_SIMD void store_as_int8(int8_t* p, Vec v) {
  __m512i q = _mm512_min_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(127));
  q = _mm512_max_epi32(q, _mm512_set1_epi32(-127));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(q));
}

// Even and odd values of the first n pairs at p.
TANDEM_SIMD void load_pairs(const float* p, int64_t n, Vec* even, Vec* odd) {
  const Vec low = load_first(p, 2 * n), high = n > 8 ? load_first(p + 16, 2 * n - 16) : zero();
  const __m512i at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  *even = _mm512_permutex2var_ps(low, at, high);
  *odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(at, _mm512_set1_epi32(1)), high);
}
// Adjacent pairs (a, b) turned by adjacent (cos, sin).
TANDEM_SIMD Vec turn_pairs(Vec v, Vec cos_sin) {
  const Vec sines = _mm512_mul_ps(_mm512_permute_ps(v, 0xb1), _mm512_movehdup_ps(cos_sin));
  return _mm512_fmaddsub_ps(v, _mm512_moveldup_ps(cos_sin), sines);
}

// Running sums in double precision.
struct Doubles {
  __m512d half[2];
};
TANDEM_SIMD Doubles no_doubles() { return {{_mm512_setzero_pd(), _mm512_setzero_pd()}}; }
TANDEM_SIMD void add_to(Doubles* d, Vec v) {
  d->half[0] = _mm512_add_pd(d->half[0], _mm512_cvtps_pd(_mm512_castps512_ps256(v)));
  d->half[1] = _mm512_add_pd(d->half[1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)));
}
TANDEM_SIMD double sum(const Doubles& d) {
  return _mm512_reduce_add_pd(_mm512_add_pd(d.half[0], d.half[1]));
}

// Bits of the largest |x| of 32 floats; see quantize_block in rows_body.h.
TANDEM_SIMD uint32_t largest_magnitude_bits(const float* x) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i a = _mm512_and_si512(_mm512_castps_si512(load(x)), magnitude);
  const __m512i b = _mm512_and_si512(_mm512_castps_si512(load(x + 16)), magnitude);
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(a, b)));
}
// 32 values to the planes of an ActBlock (act_block.h; ref::quantize_act is the same in scalars).
// sums: of value / d in either half, and of the fine bytes.
TANDEM_SIMD void quantize32(const float* x, float inverse, int8_t* coarse, int8_t* fine,
                            int sums[3]) {
  const Vec scale = splat(inverse);
  const __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(load(x + 16), scale));
  const __m512i low = _mm512_and_si512(second, _mm512_set1_epi32(15));
  const Vec noise = _mm512_mul_ps(_mm512_cvtepi32_ps(low), splat(0.0625f));
  const __m512i first = _mm512_cvtps_epi32(_mm512_sub_ps(_mm512_mul_ps(load(x), scale), noise));
  const __m512i coarse1 = _mm512_srai_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(8)), 4);
  const __m512i high = _mm512_sub_epi32(first, _mm512_slli_epi32(coarse1, 4));
  const __m512i coarse2 = _mm512_sub_epi32(_mm512_srai_epi32(second, 4), high);
  const __m512i both =
      _mm512_max_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, 4), low), _mm512_set1_epi32(-127));
  const __m128i bytes[3] = {_mm512_cvtepi32_epi8(coarse1), _mm512_cvtepi32_epi8(coarse2),
                            _mm512_cvtepi32_epi8(both)};
  _mm_store_si128(reinterpret_cast<__m128i*>(coarse), bytes[0]);
  _mm_store_si128(reinterpret_cast<__m128i*>(coarse + 16), bytes[1]);
  _mm_store_si128(reinterpret_cast<__m128i*>(fine), bytes[2]);
  // The three sums side by side, one in each quarter of a vector.
  __m512i all = _mm512_inserti32x4(_mm512_castsi128_si512(bytes[0]), bytes[1], 1);
  all = _mm512_inserti32x4(all, bytes[2], 2);
  all = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), all);
  all = _mm512_add_epi32(all, _mm512_shuffle_epi32(all, _MM_PERM_BADC));
  all = _mm512_add_epi32(all, _mm512_shuffle_epi32(all, _MM_PERM_CDAB));
  sums[2] = _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(all, 2));
  sums[0] = 256 * _mm_cvtsi128_si32(_mm512_castsi512_si128(all)) + sums[2];
  sums[1] = 256 * _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(all, 1)) + 16 * sums[2];
}

}  // namespace simd
}  // namespace
}  // namespace tandem
