// Matmul of the quantized tile forms with the matrix multiply of ARMv8.6 (SMMLA): 2 activation rows x 8 k times
// 2 weight rows x 8 k. A lone row has its two planes in place of two rows.
#include "kernels/forms_neon.h"

namespace tandem {
namespace {

struct Dots {
  static constexpr int kMostRows = 8;

  // Vectors 2i and 2i + 1 of rows 0..3 to 8 k of rows 0 and 1, and of rows 2 and 3.
  template <int kRows>
  static inline __attribute__((always_inline)) void prepare(Block128* w) {
#pragma GCC unroll 4
    for (int j = 0; j < 8; j += 2) {
      const int32x4_t a = vreinterpretq_s32_s8(w->q[j]), b = vreinterpretq_s32_s8(w->q[j + 1]);
      w->q[j] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
      w->q[j + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
    }
  }

  // Dot products of vectors [kBegin, kEnd) with the bytes from a on and from b on.
  template <int kBegin, int kEnd>
  static inline __attribute__((always_inline)) void pair(const Block128& w, const int8_t* a, const int8_t* b,
                                                         int32x4_t* with_a, int32x4_t* with_b) {
    int32x4_t first = vdupq_n_s32(0), second = vdupq_n_s32(0);  // rows 0 and 1, rows 2 and 3
#pragma GCC unroll 4
    for (int j = kBegin; j < kEnd; j += 2) {
      const int8x16_t x = vcombine_s8(vld1_s8(a + 4 * (j - kBegin)), vld1_s8(b + 4 * (j - kBegin)));
      first = vmmlaq_s32(first, x, w.q[j]);
      second = vmmlaq_s32(second, x, w.q[j + 1]);
    }
    const int64x2_t f = vreinterpretq_s64_s32(first), s = vreinterpretq_s64_s32(second);
    *with_a = vreinterpretq_s32_s64(vtrn1q_s64(f, s));
    *with_b = vreinterpretq_s32_s64(vtrn2q_s64(f, s));
  }

  template <typename Form, int kBegin, int kEnd, int kRows>
  static inline __attribute__((always_inline)) void sums(const Block128& w, const ActBlock* const a[kRows],
                                                         int32x4_t sums[kRows]) {
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      int32x4_t sum = vdupq_n_s32(0), coarse, fine;
      if constexpr (kBegin == 0) {
        pair<0, 4>(w, a[m]->coarse, a[m]->fine, &coarse, &fine);
        sum = vaddq_s32(vshlq_n_s32(coarse, 8), fine);
      }
      if constexpr (kEnd == 8) {
        pair<4, 8>(w, a[m]->coarse + 16, a[m]->fine, &coarse, &fine);
        sum = vaddq_s32(sum, vaddq_s32(vshlq_n_s32(coarse, 8), vshlq_n_s32(fine, 4)));
      }
      sums[m] = sum;
    }
  }
};

}  // namespace
}  // namespace tandem

#include "kernels/matmul_body_neon.h"

namespace tandem::neoni8mm {

void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act, int64_t M, float* y,
            int64_t ldy) {
  matmul_any(w, tile_begin, tile_end, act, M, y, ldy);
}

}  // namespace tandem::neoni8mm
