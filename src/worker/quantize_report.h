// What tandem quantize says at its end: lines, or one JSON object.
#pragma once

#include <optional>
#include <string>

#include "quantize/quantize_plan.h"
#include "worker/quantize_record.h"

namespace tandem {

struct QuantizeReport {
  const QuantizePlan& plan;
  const QuantizeTarget& target;
  const ColumnWeights* weights = nullptr;  // of a calibration
  std::optional<QuantizeTotals> totals;    // none: the file was there already
  int64_t resumed_bytes = 0;               // of the file, made by an earlier run
  double seconds = 0;
};

void print_json(const QuantizeReport& report);
void print_text(const QuantizeReport& report, const std::string& out_name);

}  // namespace tandem
