// Matmul of the quantized tile forms with AVX-VNNI: 256-bit dot products on processors without
// AVX-512. They do not saturate, so that every width takes the same steps.
#include "kernels/forms_avx2.h"

namespace tandem {
namespace {

template <typename Form, int kBegin, int kEnd>
TANDEM_INLINE __m256i dot_plane(const Block256& w, const int8_t* a, __m256i sum) {
#pragma GCC unroll 8
  for (int j = kBegin; j < kEnd; ++j) {
    __m256i q = w.q[j], x = broadcast4(a + 4 * (j - kBegin));
    if constexpr (Form::kIsSigned) {
      x = _mm256_sign_epi8(x, q);
      q = _mm256_abs_epi8(q);
    }
    sum = _mm256_dpbusd_avx_epi32(sum, q, x);
  }
  return sum;
}

}  // namespace
}  // namespace tandem

#include "kernels/matmul_body_avx2.h"

namespace tandem::avxvnni {

void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
            int64_t M, float* y, int64_t ldy) {
  matmul_any(w, tile_begin, tile_end, act, M, y, ldy);
}

}  // namespace tandem::avxvnni
