// Matmul of the quantized tile forms with the dot product of ARMv8.2 (SDOT by element).
#include "kernels/forms_neon.h"

namespace tandem {
namespace {

struct Dots {
  static constexpr int kMostRows = 8;

  template <int kRows>
  static inline __attribute__((always_inline)) void prepare(Block128*) {}

  // Row by row inside each step: several chains must be in flight to hide the latency of a dot product.
  template <typename Form, int kBegin, int kEnd, int kRows>
  static inline __attribute__((always_inline)) void sums(const Block128& w, const ActBlock* const a[kRows],
                                                         int32x4_t sums[kRows]) {
    int32x4_t coarse[kRows], fine[kRows];
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) coarse[m] = fine[m] = vdupq_n_s32(0);
#pragma GCC unroll 2
    for (int j = kEnd - 4; j >= kBegin; j -= 4) {
      int8x16_t c[kRows], f[kRows];
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
        c[m] = vld1q_s8(a[m]->coarse + 4 * j);
        f[m] = vld1q_s8(a[m]->fine);
      }
      step<0, kRows>(w.q[j], c, f, coarse, fine);
      step<1, kRows>(w.q[j + 1], c, f, coarse, fine);
      step<2, kRows>(w.q[j + 2], c, f, coarse, fine);
      step<3, kRows>(w.q[j + 3], c, f, coarse, fine);
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) fine[m] = j == 4 ? vshlq_n_s32(fine[m], 4) : fine[m];
    }
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) sums[m] = vaddq_s32(vshlq_n_s32(coarse[m], 8), fine[m]);
  }

  // One vector of weights with dword kLane of each row's bytes.
  template <int kLane, int kRows>
  static inline __attribute__((always_inline)) void step(int8x16_t q, const int8x16_t* c, const int8x16_t* f,
                                                         int32x4_t* coarse, int32x4_t* fine) {
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      coarse[m] = vdotq_laneq_s32(coarse[m], q, c[m], kLane);
      fine[m] = vdotq_laneq_s32(fine[m], q, f[m], kLane);
    }
  }
};

}  // namespace
}  // namespace tandem

#include "kernels/matmul_body_neon.h"

namespace tandem::neondot {

void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act, int64_t M, float* y,
            int64_t ldy) {
  matmul_any(w, tile_begin, tile_end, act, M, y, ldy);
}

}  // namespace tandem::neondot
