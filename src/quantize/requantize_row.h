// One row of one tensor from the source's type to the planned one, with what became of its values.
#pragma once

#include <cstdint>
#include <vector>

#include "quantize/quantize_plan.h"

namespace tandem {

struct RowOutcome {
  double squares = 0;        // of the source's values
  double error_squares = 0;  // of what is written less what was there
  // Where columns have weights, each square times its column's: of the values, of the error, and of the error that would be
  // without them.
  double weighted_squares = 0, weighted_error_squares = 0, unimproved_error_squares = 0;
  int64_t bad_value = -1;    // the first that is no finite number; nothing is written then
  bool is_too_large = false;  // what is written is no finite number any more
};

// row: 0 .. n_rows - 1    out: [row_bytes]. `scratch` grows to two rows of floats; one a thread.
RowOutcome requantize_row(const TensorPlan& plan, int64_t row, std::vector<float>* scratch, uint8_t* out);

}  // namespace tandem
