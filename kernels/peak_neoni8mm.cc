// int8 dot products in registers with SMMLA.
#include <arm_neon.h>

#include "kernels/columns.h"

namespace tandem::neoni8mm {

int64_t peak_int8(int64_t iterations, int32_t* sink) {
  constexpr int kChains = 12;
  int32x4_t acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = vdupq_n_s32(i);
  int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(1);
  for (int64_t n = 0; n < iterations; ++n) {
    asm volatile("" : "+w"(a), "+w"(b));
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = vmmlaq_s32(acc[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = veorq_s32(acc[0], acc[i]);
  *sink = vaddvq_s32(acc[0]);
  return iterations * kChains * 32 * 2;
}

}  // namespace tandem::neoni8mm
