// Random weights of every type, in the file's form, with what error bounds need to know about them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/quant_traits.h"

namespace tandem {

struct RandomMatrix {
  const QuantTraits* traits;
  int64_t n_rows, n_cols;
  std::vector<uint8_t> rows;
  std::vector<float> values;  // dequantize_row of the rows
  // Upper bound of |scale * quant| + |min| of each value: what float rounding is relative to.
  std::vector<float> magnitudes;
};

// Random bytes with finite, moderate scales: every bit pattern of the quants occurs.
RandomMatrix random_matrix(const char* type, int64_t n_rows, int64_t n_cols, uint32_t seed);

// Sets every byte of the quants (not of the scales) to `fill`.
void fill_quants(RandomMatrix* m, uint8_t fill);

// Every type that fast columns and the device serve: those of files, and the two that only packed weights have.
extern const char* const kColumnTypes[18];

}  // namespace tandem
