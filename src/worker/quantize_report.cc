#include "worker/quantize_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

const char* type_name(GgmlType type) { return quant_traits(static_cast<uint32_t>(type))->name; }

double ratio_of_roots(double a, double b) { return b > 0 ? std::sqrt(a / b) : 0.0; }

// Of the errors nothing is known that was not just computed: null.
Json describe_calibration(const QuantizeReport& r) {
  const auto is_unweighted = [](const TensorPlan& t) {
    return t.quantize_row != nullptr && t.type != GgmlType::kF32 && t.column_weights == nullptr;
  };
  Json d = {{"text", r.weights->text_name},
            {"sha256", r.weights->text_sha256},
            {"tokens", r.weights->n_tokens},
            {"windows", r.weights->n_windows},
            {"weighted_tensors", r.plan.n_weighted},
            {"unweighted_tensors", std::count_if(r.plan.tensors.begin(), r.plan.tensors.end(), is_unweighted)},
            {"weighted_error", nullptr},
            {"weighted_error_without", nullptr}};
  if (r.totals) {
    d["weighted_error"] = ratio_of_roots(r.totals->weighted_error_squares, r.totals->weighted_squares);
    d["weighted_error_without"] = ratio_of_roots(r.totals->unimproved_error_squares, r.totals->weighted_squares);
  }
  return d;
}

Json describe(const QuantizeReport& r) {
  std::map<std::string, int64_t> types, stand_ins;
  int64_t weight_bits = 0, n_weights = 0;
  for (const TensorPlan& t : r.plan.tensors) {
    ++types[type_name(t.type)];
    if (t.is_stand_in) ++stand_ins["rows of " + std::to_string(t.row_values) + " as " + type_name(t.type)];
    if (t.source->n_dims < 2) continue;
    weight_bits += 8 * t.n_bytes;
    n_weights += t.n_rows * t.row_values;
  }
  Json d = {{"type", type_name(r.target.type)},
            {"bytes", r.plan.file_bytes},
            {"bits_per_weight", static_cast<double>(weight_bits) / static_cast<double>(n_weights)},
            {"tensors_by_type", types},
            {"stand_ins", stand_ins},
            {"relative_error", nullptr},
            {"seconds", r.seconds},
            {"cached", !r.totals.has_value()},
            {"resumed_bytes", r.resumed_bytes}};
  if (r.totals) d["relative_error"] = ratio_of_roots(r.totals->error_squares, r.totals->squares);
  if (r.weights != nullptr) d["calibration"] = describe_calibration(r);
  return d;
}

void print_calibration(const Json& d) {
  std::printf("  calibrated with %lld tokens of %s: %lld tensors, whose relative error as its columns count is %.5f, without it %.5f\n",
              d["tokens"].get<long long>(), d["text"].get<std::string>().c_str(), d["weighted_tensors"].get<long long>(),
              d["weighted_error"].get<double>(), d["weighted_error_without"].get<double>());
  if (const auto n = d["unweighted_tensors"].get<long long>(); n > 0) {
    std::printf("  %lld tensors as without a calibration: rows that are looked up, or a type that takes no weights\n", n);
  }
}

}  // namespace

void print_json(const QuantizeReport& report) { std::puts(describe(report).dump().c_str()); }

void print_text(const QuantizeReport& report, const std::string& out_name) {
  if (!report.totals) {
    std::printf("%s is already made of this model with these options; nothing to do\n", out_name.c_str());
    return;
  }
  const Json d = describe(report);
  std::printf("%s, %.1f MiB, %.2f bits a weight, relative error %.5f (rms of the change over rms of the weights), %.1f s\n",
              d["type"].get<std::string>().c_str(), d["bytes"].get<double>() / 1048576, d["bits_per_weight"].get<double>(),
              d["relative_error"].get<double>(), d["seconds"].get<double>());
  for (const auto& [type, n] : d["tensors_by_type"].items()) {
    std::printf("  %-8s %6lld tensors\n", type.c_str(), n.get<long long>());
  }
  const int block = quant_traits(static_cast<uint32_t>(report.target.type))->block_size;
  for (const auto& [what, n] : d["stand_ins"].items()) {
    std::printf("  %lld tensors have %s: no multiple of %d\n", n.get<long long>(), what.c_str(), block);
  }
  if (d.contains("calibration")) print_calibration(d["calibration"]);
}

}  // namespace tandem
