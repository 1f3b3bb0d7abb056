// The attention that attention_bench compares with: three passes over a score matrix in memory, each
// written with the same vector words and register blocking as ours. K and V are contiguous floats, so
// it pays for no pages and no conversion.
#pragma once

#include <cstdint>

namespace tandem {

struct ThreePass {
  const float* q;  // [T][D]
  const float* k;  // [D][N], N a multiple of 64
  const float* v;  // [N][D]
  float* scores;   // [T][N]
  float* out;      // [T][D]
  int64_t T, N, D;
  int64_t first_pos;  // position of query row 0; row t sees keys 0..first_pos + t
  float scale;
  // Leave out the products with keys no row of a block of four sees; a matrix library computes all.
  bool skip_unseen;
};

using ThreePassFunction = void (*)(const ThreePass& a);
void three_pass_avx2(const ThreePass& a);
void three_pass_avx512vnni(const ThreePass& a);

}  // namespace tandem
