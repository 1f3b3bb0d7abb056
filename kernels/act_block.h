// Quantized activations: the form every column of the kernel table reads, so that integer parts
// compare equal between columns. One cache line a block; a row is a run of pairs of blocks,
// padded to an odd number of lines (rows a power of two apart would fall into one cache set).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/quant_blocks.h"

namespace tandem {

struct alignas(64) ActBlock {
  int8_t qs[QK];   // round(x * 127 / amax), -127..127
  float d;         // amax / 127; value = d * q. NaN if the block held a NaN or infinity
  float s;         // d * sum(qs): what a weight minimum multiplies
  int32_t c8;      // -8 * sum(qs): what unsigned weights with that offset owe; the accumulator starts here
  int32_t c16;     // -16 * sum(qs)
  int32_t c128;    // -128 * sum(qs)
  int32_t c32[2];  // -32 * sum(qs of each half): for types with a scale per 16 values
  int32_t unused;
};
static_assert(sizeof(ActBlock) == 64);

// 32 activations: int8, and int8 again of what that left, each with a scale of its own: some 15 bits. One
// plane alone (as llama.cpp's Q8_1) moves the log-probabilities of the ten likeliest tokens of SmolLM2-135M by up to
// 0.35, every product of the model having its share; two planes move them by 0.003.
struct ActPair {
  ActBlock coarse;
  ActBlock fine;
};

// Blocks whose largest magnitude lies below this are stored as zero: 127 / amax must stay finite.
constexpr float kActTiny = 1e-35f;

// Bytes of a row of n_cols values (a multiple of 32).
static constexpr size_t act_row_bytes_of(int64_t n_cols) {
  return 2 * static_cast<size_t>(n_cols / QK) * sizeof(ActBlock) + sizeof(ActBlock);
}

}  // namespace tandem
