// Matmul of the quantized tile forms with AVX2.
#include "kernels/forms_avx2.h"

namespace tandem {
namespace {

template <typename Form, int kBegin, int kEnd>
TANDEM_INLINE __m256i dot_plane(const Block256& w, const int8_t* a, __m256i sum) {
  constexpr int kSteps = Form::kSteps < kEnd - kBegin ? Form::kSteps : kEnd - kBegin;
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int j = kBegin; j < kEnd; j += kSteps) {
    __m256i words = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = j; i < j + kSteps; ++i) {
      __m256i q = w.q[i], x = broadcast4(a + 4 * (i - kBegin));
      if constexpr (Form::kIsSigned) {
        x = _mm256_sign_epi8(x, q);
        q = _mm256_abs_epi8(q);
      }
      const __m256i pair = _mm256_maddubs_epi16(q, x);
      words = kSteps == 1 ? pair : _mm256_add_epi16(words, pair);
    }
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, ones));
  }
  return sum;
}

}  // namespace
}  // namespace tandem

#include "kernels/matmul_body_avx2.h"

namespace tandem::avx2 {

void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
            int64_t M, float* y, int64_t ldy) {
  matmul_any(w, tile_begin, tile_end, act, M, y, ldy);
}

}  // namespace tandem::avx2
