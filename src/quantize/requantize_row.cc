#include "quantize/requantize_row.h"

#include <cmath>
#include <cstring>

namespace tandem {

RowOutcome requantize_row(const TensorPlan& plan, int64_t row, std::vector<float>* scratch, uint8_t* out) {
  RowOutcome outcome;
  const uint8_t* source = plan.source->data + row * plan.source_row_bytes;
  if (plan.quantize_row == nullptr) {
    std::memcpy(out, source, static_cast<size_t>(plan.row_bytes));
    return outcome;
  }
  const int64_t n = plan.row_values;
  scratch->resize(static_cast<size_t>(2 * n));
  float* x = scratch->data();
  float* written = x + n;
  quant_traits(static_cast<uint32_t>(plan.source->type))->dequantize_row(source, n, x);
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return outcome.bad_value = i, outcome;
  }
  plan.quantize_row(x, n, out);
  quant_traits(static_cast<uint32_t>(plan.type))->dequantize_row(out, n, written);
  for (int64_t i = 0; i < n; ++i) {
    const double value = x[i], error = static_cast<double>(written[i]) - value;
    outcome.squares += value * value;
    outcome.error_squares += error * error;
  }
  outcome.is_too_large = !std::isfinite(outcome.error_squares);
  return outcome;
}

}  // namespace tandem
