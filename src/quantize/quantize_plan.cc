#include "quantize/quantize_plan.h"

#include <fmt/format.h>

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

Result<TensorPlan> plan_tensor(const GgufModel& model, const GgufTensor& t, const QuantizeTarget& target) {
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
  return p;
}

GgufValue u32(uint64_t value) { return {GgufValueType::kU32, value}; }

std::vector<std::pair<std::string, GgufValue>> new_metadata(const GgufModel& model, int file_type) {
  std::vector<std::pair<std::string, GgufValue>> out;
  const std::pair<std::string, GgufValue> set[] = {
      {"general.file_type", u32(static_cast<uint64_t>(file_type))},
      {"general.quantization_version", u32(kQuantizationVersion)}};
  for (const auto& entry : model.metadata()) {
    const std::string& key = entry.first;
    if (key.rfind("split.", 0) == 0 || key == set[0].first || key == set[1].first) continue;
    out.push_back(entry);
  }
  for (const auto& entry : set) out.push_back(entry);
  return out;
}

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

}  // namespace

Result<QuantizePlan> plan_quantize(const GgufModel& model, const QuantizeTarget& target) {
  const auto found = model.get_int("general.alignment");
  const int64_t alignment = found.ok() ? *found : kDefaultAlignment;
  QuantizePlan plan;
  std::vector<HeaderTensor> table;
  int64_t end = 0;
  bool has_weights = false;
  for (const GgufTensor& t : model.tensors()) {
    CHECK_ASSIGN(TensorPlan p, plan_tensor(model, t, target));
    const int64_t offset = round_up(end, alignment);
    p.padding = offset - end;
    if (__builtin_add_overflow(offset, p.n_bytes, &end) || end > INT64_MAX / 2) {
      return invalid_argument(fmt::format("{}: the tensors together would have more than 2^62 bytes as {}",
                                          model.name(), target.option));
    }
    has_weights = has_weights || !stays_f32(t);
    table.push_back({&t.name, &t, p.type, static_cast<uint64_t>(offset)});
    plan.tensors.push_back(p);
  }
  if (!has_weights) {
    return invalid_argument(fmt::format("{}: has no tensor of two dimensions or more that could be quantized; allowed: a model "
                                        "with weights",
                                        model.name()));
  }
  plan.header = gguf_header(new_metadata(model, target.file_type), table);
  const int64_t header_bytes = round_up(static_cast<int64_t>(plan.header.size()), alignment);
  plan.header.resize(static_cast<size_t>(header_bytes), '\0');
  plan.file_bytes = header_bytes + end;
  return plan;
}

}  // namespace tandem
