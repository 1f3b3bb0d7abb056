#include "quantize/requantize_row.h"

#include <cmath>
#include <cstring>

namespace tandem {

namespace {

double weighted_error_squares(const float* x, const float* written, const float* weight, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double error = static_cast<double>(written[i]) - static_cast<double>(x[i]);
    sum += static_cast<double>(weight[i]) * error * error;
  }
  return sum;
}

}  // namespace

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
  const auto dequantize_row = quant_traits(static_cast<uint32_t>(plan.type))->dequantize_row;
  const float* weight = plan.column_weights;
  plan.quantize_row(x, n, out);
  dequantize_row(out, n, written);
  if (weight != nullptr) {
    outcome.unimproved_error_squares = weighted_error_squares(x, written, weight, n);
    plan.improve_row(x, weight, n, out);
    dequantize_row(out, n, written);
    outcome.weighted_error_squares = weighted_error_squares(x, written, weight, n);
    for (int64_t i = 0; i < n; ++i) {
      outcome.weighted_squares += static_cast<double>(weight[i]) * static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const double value = x[i], error = static_cast<double>(written[i]) - value;
    outcome.squares += value * value;
    outcome.error_squares += error * error;
  }
  outcome.is_too_large = !std::isfinite(outcome.error_squares);
  return outcome;
}

}  // namespace tandem
