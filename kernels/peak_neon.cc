// What baseline NEON reaches on this machine: int8 products in registers (widened every eighth time, as the matmul
// does), and plain reading.
#include <arm_neon.h>

#include "kernels/columns.h"

namespace tandem::neon {

int64_t peak_int8(int64_t iterations, int32_t* sink) {
  constexpr int kChains = 6, kSteps = 8;
  int32x4_t acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = vdupq_n_s32(i);
  const int8x16_t a = vdupq_n_s8(3);
  int8x16_t b = vdupq_n_s8(1);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 6
    for (int i = 0; i < kChains; ++i) {
      int16x8_t low = vdupq_n_s16(0), high = vdupq_n_s16(0);
#pragma GCC unroll 8
      for (int j = 0; j < kSteps; ++j) {
        asm volatile("" : "+w"(b));  // keeps equal steps from being computed once
        low = vmlal_s8(low, vget_low_s8(a), vget_low_s8(b));
        high = vmlal_high_s8(high, a, b);
      }
      acc[i] = vpadalq_s16(vpadalq_s16(acc[i], low), high);
    }
  }
  for (int i = 1; i < kChains; ++i) acc[0] = veorq_s32(acc[0], acc[i]);
  *sink = vaddvq_s32(acc[0]);
  return iterations * kChains * kSteps * 16 * 2;
}

uint64_t peak_read(const uint8_t* data, size_t bytes) {
  uint64x2_t acc[4];
  for (auto& sum : acc) sum = vdupq_n_u64(0);
  for (size_t at = 0; at < bytes; at += 64) {
    const auto* line = reinterpret_cast<const uint64_t*>(data + at);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) acc[i] = veorq_u64(acc[i], vld1q_u64(line + 2 * i));
  }
  const uint64x2_t all = veorq_u64(veorq_u64(acc[0], acc[1]), veorq_u64(acc[2], acc[3]));
  return vgetq_lane_u64(all, 0) ^ vgetq_lane_u64(all, 1);
}

}  // namespace tandem::neon
