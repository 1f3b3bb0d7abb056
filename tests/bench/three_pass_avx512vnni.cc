// three_pass_body.h for this column.
// clang-format off
#include "kernels/simd_avx512vnni.h"  // first: the body is written in its words
#include "tests/bench/three_pass_body.h"
// clang-format on

namespace tandem {
void three_pass_avx512vnni(const ThreePass& a) { three_pass::run(a); }
}  // namespace tandem
