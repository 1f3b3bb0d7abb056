// Matmul of the quantized tile forms with baseline ARMv8-A NEON (Cortex-A53, A72: no dot product instruction).
// DESIGN: products are summed in int16 before widening, which must not overflow: 8 steps of 32 * 127 fit
// (32512), and 2 of 128 * 127.
#include "kernels/forms_neon.h"

namespace tandem {
namespace {

TANDEM_INLINE int8x16_t broadcast4(const int8_t* p) {
  int32_t x;
  memcpy(&x, p, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(x));
}

struct Dots {
  static constexpr int kMostRows = 4;

  template <int kRows>
  static inline __attribute__((always_inline)) void prepare(Block128*) {}

  // Dot products of vectors [kBegin, kEnd) with the bytes from a on.
  template <typename Form, int kBegin, int kEnd>
  static inline __attribute__((always_inline)) int32x4_t plane(const Block128& w, const int8_t* a) {
    constexpr int kSteps = Form::kLargest <= 32 ? kEnd - kBegin : 2;
    int32x4_t low = vdupq_n_s32(0), high = vdupq_n_s32(0);  // rows 0 and 1, rows 2 and 3: two lanes each
#pragma GCC unroll 8
    for (int j = kBegin; j < kEnd; j += kSteps) {
      int8x16_t x = broadcast4(a + 4 * (j - kBegin));
      int16x8_t words_low = vmull_s8(vget_low_s8(w.q[j]), vget_low_s8(x));
      int16x8_t words_high = vmull_high_s8(w.q[j], x);
#pragma GCC unroll 8
      for (int i = j + 1; i < j + kSteps; ++i) {
        x = broadcast4(a + 4 * (i - kBegin));
        words_low = vmlal_s8(words_low, vget_low_s8(w.q[i]), vget_low_s8(x));
        words_high = vmlal_high_s8(words_high, w.q[i], x);
      }
      low = vpadalq_s16(low, words_low);
      high = vpadalq_s16(high, words_high);
    }
    return vpaddq_s32(low, high);
  }

  template <typename Form, int kBegin, int kEnd, int kRows>
  static inline __attribute__((always_inline)) void sums(const Block128& w, const ActBlock* const a[kRows],
                                                         int32x4_t sums[kRows]) {
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      // Named first: where vshlq_n_s32 is a macro, template commas would split its arguments.
      const int32x4_t coarse = plane<Form, kBegin, kEnd>(w, a[m]->coarse + 4 * kBegin);
      int32x4_t sum = vshlq_n_s32(coarse, 8);
      if constexpr (kBegin == 0) sum = vaddq_s32(sum, plane<Form, 0, 4>(w, a[m]->fine));
      if constexpr (kEnd == 8) {
        const int32x4_t fine = plane<Form, 4, 8>(w, a[m]->fine);
        sum = vaddq_s32(sum, vshlq_n_s32(fine, 4));
      }
      sums[m] = sum;
    }
  }
};

}  // namespace
}  // namespace tandem

#include "kernels/matmul_body_neon.h"

namespace tandem::neon {

void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act, int64_t M, float* y,
            int64_t ldy) {
  matmul_any(w, tile_begin, tile_end, act, M, y, ldy);
}

}  // namespace tandem::neon
