// What device code needs of the machine beyond plain C++: byte permutes, half conversions, tensor-core products,
// sums over a warp. Under nvcc these are intrinsics and inline PTX; elsewhere (the stand-in of tests/simt) a
// portable body with the same results. Bodies that the stand-in replaces, and which only a card can test:
// mma_s8 and the nvcc forms of permute_bytes, half_bits_to_float, float_to_half_bits.
#pragma once

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

#include "kernels/quant_traits.h"

#define TANDEM_DEVICE static __device__ __forceinline__

namespace tandem {

constexpr unsigned kWholeWarp = 0xffffffffu;

TANDEM_DEVICE int lane_of_thread() { return static_cast<int>(threadIdx.x & 31); }
TANDEM_DEVICE int warp_of_thread() { return static_cast<int>(threadIdx.x >> 5); }

// Weights and scales: read once, through the read-only path.
template <typename T>
TANDEM_DEVICE T load_constant(const void* p) {
#if defined(__CUDACC__)
  return __ldg(static_cast<const T*>(p));
#else
  return *static_cast<const T*>(p);
#endif
}

TANDEM_DEVICE float half_bits_to_float(uint16_t h) {
#if defined(__CUDACC__)
  return __half2float(__ushort_as_half(h));
#else
  return half_to_float(h);
#endif
}
TANDEM_DEVICE uint16_t float_to_half_bits(float f) {
#if defined(__CUDACC__)
  return __half_as_ushort(__float2half_rn(f));
#else
  return float_to_half(f);
#endif
}
TANDEM_DEVICE float bf16_bits_to_float(uint16_t b) { return __uint_as_float(static_cast<uint32_t>(b) << 16); }

// Byte i of the result is byte (selector >> 4 i) & 7 of the eight bytes b:a (a holds bytes 0..3).
TANDEM_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(__CUDACC__)
  return __byte_perm(a, b, selector & 0x7777u);
#else
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return out;
#endif
}

// Sum of four products of signed bytes, plus c.
TANDEM_DEVICE int dot4(uint32_t a, uint32_t b, int c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}

// c += A B of one warp. A: 16 rows of 16 signed bytes; lane l holds bytes 4 (l % 4) ... + 3 of row l / 4 (a0) and
// of row l / 4 + 8 (a1). B: 8 columns; lane l holds the same bytes of column l / 4. c: rows l / 4 (c[0], c[1]) and
// l / 4 + 8 (c[2], c[3]), columns 2 (l % 4) and the next. Called by all lanes.
TANDEM_DEVICE void mma_s8(int c[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if defined(__CUDACC__)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
#else  // sm_75 has half of it
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+r"(c[0]), "+r"(c[1])
      : "r"(a0), "r"(b));
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+r"(c[2]), "+r"(c[3])
      : "r"(a1), "r"(b));
#endif
#else
  const int lane = lane_of_thread(), row = lane & ~3, column = 2 * (lane & 3);
  for (int j = 0; j < 4; ++j) {
    const uint32_t first = __shfl_sync(kWholeWarp, a0, row + j), second = __shfl_sync(kWholeWarp, a1, row + j);
    const uint32_t left = __shfl_sync(kWholeWarp, b, 4 * column + j);
    const uint32_t right = __shfl_sync(kWholeWarp, b, 4 * column + 4 + j);
    c[0] = dot4(first, left, c[0]);
    c[1] = dot4(first, right, c[1]);
    c[2] = dot4(second, left, c[2]);
    c[3] = dot4(second, right, c[3]);
  }
#endif
}

// Over a warp, by a fixed tree; every lane gets the result. Called by all lanes.
TANDEM_DEVICE float warp_sum(float x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(kWholeWarp, x, i);
  return x;
}
TANDEM_DEVICE float warp_max(float x) {
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, i));
  return x;
}
TANDEM_DEVICE int warp_sum_int(int x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(kWholeWarp, x, i);
  return x;
}

// What one block of threads leaves for another of the same launch: past the first cache.
TANDEM_DEVICE void store_for_others(float* p, float x) { __stcg(p, x); }
TANDEM_DEVICE float load_from_others(const float* p) { return __ldcg(p); }

}  // namespace tandem
