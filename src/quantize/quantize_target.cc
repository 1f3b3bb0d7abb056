#include "quantize/quantize_target.h"

#include <algorithm>

#include "base/check.h"
#include "quantize/row_quantizers.h"

namespace tandem {

namespace {

template <GgmlType kType>
void quantize_row_of(const float* x, int64_t n, uint8_t* blocks) {
  quant_traits(static_cast<uint32_t>(kType))->quantize_row(x, n, blocks);
}

// Stand-ins as llama-quantize takes them: the nearest type of 32 values a block that is no narrower.
constexpr QuantizeTarget kTargets[] = {
    {GgmlType::kQ8_0, "q8_0", 7, GgmlType::kF16, quantize_file_row_q8_0, nullptr},
    {GgmlType::kQ4_0, "q4_0", 2, GgmlType::kF16, quantize_file_row_q4_0, improve_file_row_q4_0},
    {GgmlType::kQ4_1, "q4_1", 3, GgmlType::kF16, quantize_file_row_q4_1, improve_file_row_q4_1},
    {GgmlType::kQ5_0, "q5_0", 8, GgmlType::kF16, quantize_file_row_q5_0, improve_file_row_q5_0},
    {GgmlType::kQ5_1, "q5_1", 9, GgmlType::kF16, quantize_file_row_q5_1, improve_file_row_q5_1},
    {GgmlType::kQ4_K, "q4_k", 14, GgmlType::kQ5_0, quantize_file_row_q4_k, improve_file_row_q4_k},
    {GgmlType::kQ5_K, "q5_k", 16, GgmlType::kQ5_1, quantize_file_row_q5_k, improve_file_row_q5_k},
    {GgmlType::kQ6_K, "q6_k", 18, GgmlType::kQ8_0, quantize_file_row_q6_k, improve_file_row_q6_k},
    {GgmlType::kF16, "f16", 1, GgmlType::kF16, quantize_row_of<GgmlType::kF16>, nullptr},
    {GgmlType::kBF16, "bf16", 32, GgmlType::kBF16, quantize_row_of<GgmlType::kBF16>, nullptr},
    {GgmlType::kF32, "f32", 0, GgmlType::kF32, quantize_row_of<GgmlType::kF32>, nullptr},
};

}  // namespace

std::span<const QuantizeTarget> quantize_targets() { return kTargets; }

const QuantizeTarget* find_quantize_target(std::string_view option) {
  std::string lower(option);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  for (const QuantizeTarget& t : kTargets) {
    if (lower == t.option) return &t;
  }
  return nullptr;
}

const QuantizeTarget& quantize_target_of(GgmlType type) {
  const auto found = std::find_if(std::begin(kTargets), std::end(kTargets),
                                  [type](const QuantizeTarget& t) { return t.type == type; });
  CHECK(found != std::end(kTargets));
  return *found;
}

std::string quantize_target_options(bool has_weights) {
  std::string all;
  for (const QuantizeTarget& t : kTargets) {
    if (!has_weights || t.improve_row != nullptr) all += (all.empty() ? "" : ", ") + std::string(t.option);
  }
  return all;
}

}  // namespace tandem
