// matmul_dense_body.h for this column.
// clang-format off
#include "kernels/simd_neon.h"  // first: the body is written in its words
#include "kernels/matmul_dense_body.h"
// clang-format on

namespace tandem::neon {

void matmul_dense(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,
                  int64_t ldx, int64_t M, float* y, int64_t ldy) {
  dense::matmul_dense(w, tile_begin, tile_end, x, ldx, M, y, ldy);
}

}  // namespace tandem::neon
