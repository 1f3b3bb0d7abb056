// Looks for scales that are no numbers: one NaN in a block silently spoils every output it touches
// (field case C-39). Reads only the scale fields, but thereby every cache line: backends call it
// while packing, which reads the rows anyway.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "model/weights.h"

namespace tandem {

// Rows [row_begin, row_end) of `w`. kDataLoss names row and block; the caller adds file and tensor.
// Thread-safe.
Status check_finite_rows(const WeightView& w, int64_t row_begin, int64_t row_end);

}  // namespace tandem
