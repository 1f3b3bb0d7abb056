// Quantized activations: the form every column of the kernel table reads, so that integer parts
// compare equal between columns. A row is a run of blocks, padded to an odd number of cache lines
// (rows a power of two apart would fall into one cache set).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/quant_blocks.h"

namespace tandem {

// 32 activations of 12 bits in 1.5 planes of int8. Value i and value i + 16 share one fine byte:
//   value i      = d * (256 * coarse[i]      +      fine[i])   i in 0..15
//   value i + 16 = d * (256 * coarse[i + 16] + 16 * fine[i])
// so that one dot product of `fine` with bytes q[i] + 16 * q[i + 16] serves both: for 4-bit weights
// those are the packed bytes as they are, and a product costs 1.5 dot products instead of 2. The
// high half of `fine` (times 16) refines the first value, what it adds to the second is taken back
// in coarse[i + 16]; the low half refines the second and is noise below the step of the first.
// Every value lies within half a step (8 d) of the truth, a step being amax / 1919. WHY 12 bits:
// largest error of the ten likeliest log-probabilities of SmolLM2-135M (bound 0.05) at the golden
// prompts by bits: 8: 0.36, 9: 0.17, 10: 0.14, 11: 0.055, 12: 0.035, this form: 0.031, 16: 0.006.
// All five kinds of product have their share (8 bits in one kind alone: q,k,v 0.20, o 0.05, gate
// and up 0.19, down 0.27, output 0.21), and so have nearly all blocks of a row: 8 bits only where a
// block's largest value is below twice the row's rms still gives 0.066.
struct alignas(16) ActBlock {
  int8_t coarse[QK];    // -127 ... 127
  int8_t fine[QK / 2];  // -127 ... 127
  float d;              // amax / 1919 / 16. NaN if the block held a NaN or infinity
  float s;              // d * sum: what a weight minimum multiplies; sum is that of value / d
  int32_t c8;           // -8 * sum: what unsigned weights with that offset owe
  int32_t c16;          // -16 * sum
  int32_t c128;         // -128 * sum
  int32_t c32[2];       // -32 * sum of each half: for types with a scale per 16 values
  int32_t fine_128;     // 128 * sum of fine: what packed bytes taken as signed (minus 128) owe
};
static_assert(sizeof(ActBlock) == 80);

constexpr float kActSteps = 1919.0f;  // steps in amax: 119 * 16 + 15, so that coarse stays in int8

// Blocks whose largest magnitude lies below this are stored as zero: 1919 / amax must stay finite
// and d normal.
constexpr float kActTiny = 1e-30f;

// Value j of a block over d.
static constexpr int act_level(const ActBlock& a, int j) {
  return 256 * a.coarse[j] + (j < 16 ? a.fine[j] : 16 * a.fine[j - 16]);
}

// Bytes of a row of n_cols values (a multiple of 32).
static constexpr size_t act_row_bytes_of(int64_t n_cols) {
  return ((static_cast<size_t>(n_cols / QK) * sizeof(ActBlock) + 63) / 64 | 1) * 64;
}

}  // namespace tandem
