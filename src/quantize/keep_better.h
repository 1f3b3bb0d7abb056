// Blocks written in two ways: the one with less weighted error stays.
#pragma once

#include <cstdint>

#include "kernels/quant_traits.h"

namespace tandem {

// One block of the type from its values.  x, weight: [block_size]
using BlockMaker = void (*)(const float* x, const float* weight, uint8_t* block);

// Each of `blocks` becomes what `make` writes, where the squared errors of its values times their weights add up to less.
// x, weight: [n]    weight >= 0, finite. Where all weights of a block are 0, or what is there already is as good, it stays. Thread-safe.
void keep_better(GgmlType type, BlockMaker make, const float* x, const float* weight, int64_t n, uint8_t* blocks);

}  // namespace tandem
