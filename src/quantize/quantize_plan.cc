#include "quantize/quantize_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "gguf/gguf_parser.h"
#include "quantize/gguf_header.h"

namespace tandem {

namespace {

constexpr int64_t kDefaultAlignment = 32;  // the GGUF specification's
constexpr uint64_t kQuantizationVersion = 2;  // of the block layouts in kernels/quant_blocks.h

bool stays_f32(const GgufTensor& t) {
  return t.n_dims < 2 || t.name.find("norm") != std::string::npos ||
         t.name.find("ffn_gate_inp") != std::string::npos;
}

bool is_integer(GgmlType type) {
  return type == GgmlType::kI8 || type == GgmlType::kI16 || type == GgmlType::kI32 || type == GgmlType::kI64;
}

Result<TensorPlan> plan_tensor(const GgufModel& model, const GgufTensor& t, const QuantizeTarget& target,
                               const ColumnWeights* weights) {
  TensorPlan p;
  p.source = &t;
  p.row_values = t.dims[0];
  p.n_rows = t.dims[1] * t.dims[2] * t.dims[3];
  const QuantTraits* from = quant_traits(static_cast<uint32_t>(t.type));
  p.source_row_bytes = p.row_values / from->block_size * from->block_bytes;
  p.type = t.type;
  p.row_bytes = p.source_row_bytes;
  p.n_bytes = p.n_rows * p.row_bytes;
  if (is_integer(t.type)) return p;
  const QuantizeTarget* to = stays_f32(t) ? &quantize_target_of(GgmlType::kF32) : &target;
  // A stand-in may need one of its own: rows of 72 as Q4_K are Q5_0 no more than that.
  for (; p.row_values % quant_traits(static_cast<uint32_t>(to->type))->block_size != 0; p.is_stand_in = true) {
    to = &quantize_target_of(to->stand_in);
  }
  p.type = to->type;
  const QuantTraits* traits = quant_traits(static_cast<uint32_t>(p.type));
  p.row_bytes = p.row_values / traits->block_size * traits->block_bytes;
  p.n_bytes = p.n_rows * p.row_bytes;
  if (to->type == t.type) return p;
  if (from->dequantize_row == nullptr) {
    return unimplemented(fmt::format("{}: tensor \"{}\" is of type {}, which has no way back to floats; allowed: a model of "
                                     "floating-point or quantized weights",
                                     model.name(), printable(t.name), from->name));
  }
  p.quantize_row = to->quantize_row;
  if (weights == nullptr || to->improve_row == nullptr) return p;
  if (const auto found = weights->columns.find(&t); found != weights->columns.end()) {
    CHECK(static_cast<int64_t>(found->second.size()) == p.row_values);
    p.improve_row = to->improve_row;
    p.column_weights = found->second.data();
  }
  return p;
}

GgufValue u32(uint64_t value) { return {GgufValueType::kU32, value}; }

GgufValue text(std::string_view value) { return {GgufValueType::kString, value}; }

using Metadata = std::vector<std::pair<std::string, GgufValue>>;

// entries and chunks as llama-quantize counts them: tensors, and pieces of the text that were read apart.
Metadata calibration_metadata(const ColumnWeights& weights, int64_t n_weighted) {
  return {{"quantize.imatrix.dataset", text(weights.text_name)},
          {"quantize.imatrix.entries_count", u32(static_cast<uint64_t>(n_weighted))},
          {"quantize.imatrix.chunks_count", u32(static_cast<uint64_t>(weights.n_windows))},
          {"tandem.calibration.tokens", u32(static_cast<uint64_t>(weights.n_tokens))},
          {"tandem.calibration.sha256", text(weights.text_sha256)}};
}

bool begins_with(const std::string& key, const char* prefix) { return key.rfind(prefix, 0) == 0; }

Metadata new_metadata(const GgufModel& model, int file_type, std::string_view source_sha256, const ColumnWeights* weights,
                      int64_t n_weighted) {
  Metadata set = {{"general.file_type", u32(static_cast<uint64_t>(file_type))},
                  {"general.quantization_version", u32(kQuantizationVersion)},
                  {"tandem.quantize.source_sha256", text(source_sha256)},
                  {"tandem.quantize.version", u32(kQuantizeVersion)}};
  // What an earlier calibration left says nothing of the new types.
  const auto is_replaced = [&](const std::string& key) {
    return begins_with(key, "split.") || begins_with(key, "tandem.quantize.") || key == set[0].first || key == set[1].first ||
           (weights != nullptr && (begins_with(key, "quantize.imatrix.") || begins_with(key, "tandem.calibration.")));
  };
  Metadata out;
  std::copy_if(model.metadata().begin(), model.metadata().end(), std::back_inserter(out),
               [&](const auto& entry) { return !is_replaced(entry.first); });
  out.insert(out.end(), set.begin(), set.end());
  if (weights == nullptr) return out;
  set = calibration_metadata(*weights, n_weighted);
  out.insert(out.end(), set.begin(), set.end());
  return out;
}

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

}  // namespace

Result<QuantizePlan> plan_quantize(const GgufModel& model, const QuantizeTarget& target, std::string_view source_sha256,
                                   const ColumnWeights* weights) {
  const auto found = model.get_int("general.alignment");
  const int64_t alignment = found.ok() ? *found : kDefaultAlignment;
  QuantizePlan plan;
  std::vector<HeaderTensor> table;
  int64_t end = 0;
  bool has_weights = false;
  for (const GgufTensor& t : model.tensors()) {
    CHECK_ASSIGN(TensorPlan p, plan_tensor(model, t, target, weights));
    const int64_t offset = round_up(end, alignment);
    p.padding = offset - end;
    if (__builtin_add_overflow(offset, p.n_bytes, &end) || end > INT64_MAX / 2) {
      return invalid_argument(fmt::format("{}: the tensors together would have more than 2^62 bytes as {}",
                                          model.name(), target.option));
    }
    has_weights = has_weights || !stays_f32(t);
    if (p.column_weights != nullptr) ++plan.n_weighted;
    table.push_back({&t.name, &t, p.type, static_cast<uint64_t>(offset)});
    plan.tensors.push_back(p);
  }
  if (!has_weights) {
    return invalid_argument(fmt::format("{}: has no tensor of two dimensions or more that could be quantized; allowed: a model "
                                        "with weights",
                                        model.name()));
  }
  if (weights != nullptr && plan.n_weighted == 0) {
    return invalid_argument(fmt::format("{}: a calibration would change nothing: none of its matrices becomes a type that takes column "
                                        "weights ({}); leave --calibration out, or take another type or model",
                                        model.name(), quantize_target_options(true)));
  }
  plan.header = gguf_header(new_metadata(model, target.file_type, source_sha256, weights, plan.n_weighted), table);
  const int64_t header_bytes = round_up(static_cast<int64_t>(plan.header.size()), alignment);
  plan.header.resize(static_cast<size_t>(header_bytes), '\0');
  plan.file_bytes = header_bytes + end;
  return plan;
}

}  // namespace tandem
