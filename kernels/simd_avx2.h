// The vector words that rows_body.h and attention_body.h are written in, for AVX2. Internal
// linkage.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace tandem {
namespace {
namespace simd {

#define TANDEM_SIMD static inline __attribute__((always_inline))

constexpr int kWide =
    2;  // vectors a row of accumulators may take: four rows of them fit the registers
constexpr int kLanes = 8;
using Vec = __m256;

// All ones in the first n lanes.
TANDEM_SIMD __m256i first(int64_t n) {
  const int count = static_cast<int>(n > 8 ? 8 : n);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
TANDEM_SIMD Vec zero() { return _mm256_setzero_ps(); }
TANDEM_SIMD Vec splat(float x) { return _mm256_set1_ps(x); }
TANDEM_SIMD Vec load(const float* p) { return _mm256_loadu_ps(p); }
TANDEM_SIMD void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
// The first n lanes alone; the others load as zero. Masked moves are slow (a store some twenty cycles
// on Zen), and only a row's last vector needs them.
TANDEM_SIMD Vec load_first(const float* p, int64_t n) {
  return n >= kLanes ? load(p) : _mm256_maskload_ps(p, first(n));
}
TANDEM_SIMD void store_first(float* p, int64_t n, Vec v) {
  if (n >= kLanes) {
    store(p, v);
  } else {
    _mm256_maskstore_ps(p, first(n), v);
  }
}
TANDEM_SIMD Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
TANDEM_SIMD Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
TANDEM_SIMD Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
TANDEM_SIMD Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
TANDEM_SIMD Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
TANDEM_SIMD Vec fms(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }
TANDEM_SIMD Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }  // b where either is NaN
TANDEM_SIMD Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }  // b where either is NaN
TANDEM_SIMD Vec round(Vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
TANDEM_SIMD float first_lane(Vec a) { return _mm256_cvtss_f32(a); }
TANDEM_SIMD float sum(Vec a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
TANDEM_SIMD float largest(Vec a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
// p * 2^n for integral n in -250..250: in two factors, so that results may be subnormal or
// infinite.
TANDEM_SIMD Vec scale_by_power(Vec p, Vec n) {
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const Vec a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const Vec b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, a), b);
}
// p * 2^n for integral n <= 0 and above kLowestPower; there it is 0.
constexpr float kLowestPower = -127.0f;
TANDEM_SIMD Vec scale_down(Vec p, Vec n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
// Lanes outside [begin, end) become `other`.
TANDEM_SIMD Vec keep(Vec a, int begin, int end, float other) {
  const __m256i lanes = _mm256_andnot_si256(first(begin), first(end));
  return _mm256_blendv_ps(_mm256_set1_ps(other), a, _mm256_castsi256_ps(lanes));
}

TANDEM_SIMD Vec load_half(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TANDEM_SIMD void store_half(uint8_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
TANDEM_SIMD Vec load_bf16(const uint8_t* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
TANDEM_SIMD Vec load_int8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
// Rounded to -127..127; NaN becomes -127.
TANDEM_SIMD void store_as_int8(int8_t* p, Vec v) {
  __m256i q = _mm256_min_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127));
  q = _mm256_max_epi32(q, _mm256_set1_epi32(-127));
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

// Even and odd values of the first n pairs at p.
TANDEM_SIMD void load_pairs(const float* p, int64_t n, Vec* even, Vec* odd) {
  const Vec low = load_first(p, 2 * n), high = n > 4 ? load_first(p + 8, 2 * n - 8) : zero();
  const Vec a = _mm256_permute2f128_ps(low, high, 0x20),
            b = _mm256_permute2f128_ps(low, high, 0x31);
  *even = _mm256_shuffle_ps(a, b, 0x88);
  *odd = _mm256_shuffle_ps(a, b, 0xdd);
}
// Adjacent pairs (a, b) turned by adjacent (cos, sin).
TANDEM_SIMD Vec turn_pairs(Vec v, Vec cos_sin) {
  const Vec sines = _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), _mm256_movehdup_ps(cos_sin));
  return _mm256_fmaddsub_ps(v, _mm256_moveldup_ps(cos_sin), sines);
}

// Running sums in double precision.
struct Doubles {
  __m256d half[2];
};
TANDEM_SIMD Doubles no_doubles() { return {{_mm256_setzero_pd(), _mm256_setzero_pd()}}; }
TANDEM_SIMD void add_to(Doubles* d, Vec v) {
  d->half[0] = _mm256_add_pd(d->half[0], _mm256_cvtps_pd(_mm256_castps256_ps128(v)));
  d->half[1] = _mm256_add_pd(d->half[1], _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
}
TANDEM_SIMD double sum(const Doubles& d) {
  const __m256d all = _mm256_add_pd(d.half[0], d.half[1]);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(all), _mm256_extractf128_pd(all, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

TANDEM_SIMD int sum_int32(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
// Bits of the largest |x| of 32 floats; see quantize_block in rows_body.h.
TANDEM_SIMD uint32_t largest_magnitude_bits(const float* x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i high = _mm256_setzero_si256();
  for (int i = 0; i < 32; i += 8) {
    high = _mm256_max_epi32(high, _mm256_and_si256(_mm256_castps_si256(load(x + i)), magnitude));
  }
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1))));
}
TANDEM_SIMD void store_int8(int8_t* p, __m256i a, __m256i b) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_store_si128(reinterpret_cast<__m128i*>(p), bytes);
}
// 32 values to the planes of an ActBlock (act_block.h; ref::quantize_act is the same in scalars).
// sums: of value / d in either half, and of the fine bytes.
TANDEM_SIMD void quantize32(const float* x, float inverse, int8_t* coarse, int8_t* fine,
                            int sums[3]) {
  const Vec scale = splat(inverse);
  __m256i coarse1[2], coarse2[2], both[2];
  for (int i = 0; i < 2; ++i) {
    const __m256i second = _mm256_cvtps_epi32(_mm256_mul_ps(load(x + 16 + 8 * i), scale));
    const __m256i low = _mm256_and_si256(second, _mm256_set1_epi32(15));
    const Vec noise = _mm256_mul_ps(_mm256_cvtepi32_ps(low), splat(0.0625f));
    const Vec exact = _mm256_mul_ps(load(x + 8 * i), scale);
    const __m256i first = _mm256_cvtps_epi32(_mm256_sub_ps(exact, noise));
    coarse1[i] = _mm256_srai_epi32(_mm256_add_epi32(first, _mm256_set1_epi32(8)), 4);
    const __m256i high = _mm256_sub_epi32(first, _mm256_slli_epi32(coarse1[i], 4));
    coarse2[i] = _mm256_sub_epi32(_mm256_srai_epi32(second, 4), high);
    both[i] = _mm256_max_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, 4), low),
                               _mm256_set1_epi32(-127));
  }
  store_int8(coarse, coarse1[0], coarse1[1]);
  store_int8(coarse + 16, coarse2[0], coarse2[1]);
  store_int8(fine, both[0], both[1]);
  sums[2] = sum_int32(_mm256_add_epi32(both[0], both[1]));
  sums[0] = 256 * sum_int32(_mm256_add_epi32(coarse1[0], coarse1[1])) + sums[2];
  sums[1] = 256 * sum_int32(_mm256_add_epi32(coarse2[0], coarse2[1])) + 16 * sums[2];
}

}  // namespace simd
}  // namespace
}  // namespace tandem
