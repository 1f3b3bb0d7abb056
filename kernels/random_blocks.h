// Random weights in the file's form, for the self-check, tests and benches.
#pragma once

#include "kernels/quant_traits.h"

namespace tandem {

// n_blocks blocks of a weight type: random bytes with finite, moderate scales (about 0.05), so that
// every bit pattern of the quants occurs. Types with one value a block get small random values.
void fill_random_blocks(const QuantTraits& t, int64_t n_blocks, uint32_t seed, uint8_t* blocks);

// Sets every byte of the quants, not of the scales, to `fill`; with 0 a block dequantizes to its
// minimum. False for types without quants (F32, F16, BF16), which are left alone.
bool set_quant_bytes(const QuantTraits& t, int64_t n_blocks, uint8_t fill, uint8_t* blocks);

// Whether values are scale * quant plus a minimum: float rounding is then relative to both parts.
bool has_minimum(const QuantTraits& t);

}  // namespace tandem
