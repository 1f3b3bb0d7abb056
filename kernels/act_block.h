// Quantized activations: the form every column of the kernel table reads, so that integer parts
// compare equal between columns. A row is a run of blocks, padded to an odd number of cache lines
// (rows a power of two apart would fall into one cache set).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/quant_blocks.h"

namespace tandem {

// 32 activations as 16-bit integers in two planes of int8: value = d * (256 * coarse + fine). One
// plane alone (as llama.cpp's Q8_1) moves the log-probabilities of the ten likeliest tokens of
// SmolLM2-135M by up to 0.35, every product of the model having its share. The planes share one
// scale, so that their dot products join as integers and one conversion serves both.
struct alignas(32) ActBlock {
  int8_t coarse[QK];  // round(t), t = x * 127 / amax
  int8_t fine[QK];    // round(256 * (t - coarse)), at most 127 in magnitude
  float d;            // amax / 127 / 256. NaN if the block held a NaN or infinity
  float s;         // d * sum: what a weight minimum multiplies; sum is that of the 16-bit integers
  int32_t c8;      // -8 * sum: what unsigned weights with that offset owe
  int32_t c16;     // -16 * sum
  int32_t c128;    // -128 * sum
  int32_t c32[2];  // -32 * sum of each half: for types with a scale per 16 values
  int32_t unused;
};
static_assert(sizeof(ActBlock) == 96);

// Blocks whose largest magnitude lies below this are stored as zero: 127 / amax must stay finite
// and d normal.
constexpr float kActTiny = 1e-30f;

// Bytes of a row of n_cols values (a multiple of 32).
static constexpr size_t act_row_bytes_of(int64_t n_cols) {
  return ((static_cast<size_t>(n_cols / QK) * sizeof(ActBlock) + 63) / 64 | 1) * 64;
}

}  // namespace tandem
