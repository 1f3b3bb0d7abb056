#include "quantize/keep_better.h"

#include <cstring>

#include "kernels/quant_blocks.h"

namespace tandem {

namespace {

// Of the bytes as they will be read: scales rounded to what the block holds.
double weighted_error(const QuantTraits& traits, const float* x, const float* weight, const uint8_t* block) {
  float written[QK_K];
  traits.dequantize_row(block, traits.block_size, written);
  double sum = 0;
  for (int i = 0; i < traits.block_size; ++i) {
    const double difference = static_cast<double>(written[i]) - static_cast<double>(x[i]);
    sum += static_cast<double>(weight[i]) * difference * difference;
  }
  return sum;
}

}  // namespace

void keep_better(GgmlType type, BlockMaker make, const float* x, const float* weight, int64_t n, uint8_t* blocks) {
  const QuantTraits& traits = *quant_traits(static_cast<uint32_t>(type));
  for (int64_t at = 0; at < n; at += traits.block_size, blocks += traits.block_bytes) {
    uint8_t made[sizeof(block_q6_K)];  // the largest of the types that are written
    make(x + at, weight + at, made);
    if (weighted_error(traits, x + at, weight + at, made) < weighted_error(traits, x + at, weight + at, blocks)) {
      std::memcpy(blocks, made, static_cast<size_t>(traits.block_bytes));
    }
  }
}

}  // namespace tandem
