// What the products of a forward pass read: sums of squares, column by column, over all rows that passed. Their means
// say how much the error of a weight's column counts (`tandem quantize --calibration`). Plain data, filled by CpuForward.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace tandem {

struct ColumnSquares {
  std::vector<double> sums;  // [n_cols]
  int64_t n_rows = 0;
};

// One for each group of products that read the same activations. Rows are added in the order of the batch, so the bits are
// the same for any number of threads and any cut into steps.
struct InputSquares {
  struct Layer {
    ColumnSquares qkv, o, gate_up, down;
  };
  std::vector<Layer> layers;
  ColumnSquares output;
};

// Zeros in the widths of `config`.
InputSquares make_input_squares(const ModelConfig& config);

}  // namespace tandem
