// The table of GGUF tensor types.
#include "kernels/quant_traits.h"

#include <string.h>

#include "kernels/quant_blocks.h"
#include "kernels/quant_rows.h"

namespace tandem {
namespace {

constexpr QuantTraits kTraits[] = {
    {GgmlType::kF32, "F32", 1, 4, dequantize_row_f32, quantize_row_f32},
    {GgmlType::kF16, "F16", 1, 2, dequantize_row_f16, quantize_row_f16},
    {GgmlType::kBF16, "BF16", 1, 2, dequantize_row_bf16, quantize_row_bf16},
    {GgmlType::kQ4_0, "Q4_0", QK, sizeof(block_q4_0), dequantize_row_q4_0, quantize_row_q4_0},
    {GgmlType::kQ4_1, "Q4_1", QK, sizeof(block_q4_1), dequantize_row_q4_1, quantize_row_q4_1},
    {GgmlType::kQ5_0, "Q5_0", QK, sizeof(block_q5_0), dequantize_row_q5_0, nullptr},
    {GgmlType::kQ5_1, "Q5_1", QK, sizeof(block_q5_1), dequantize_row_q5_1, nullptr},
    {GgmlType::kQ8_0, "Q8_0", QK, sizeof(block_q8_0), dequantize_row_q8_0, quantize_row_q8_0},
    {GgmlType::kQ8_1, "Q8_1", QK, sizeof(block_q8_1), nullptr, nullptr},
    {GgmlType::kQ2_K, "Q2_K", QK_K, sizeof(block_q2_K), dequantize_row_q2_k, nullptr},
    {GgmlType::kQ3_K, "Q3_K", QK_K, sizeof(block_q3_K), dequantize_row_q3_k, nullptr},
    {GgmlType::kQ4_K, "Q4_K", QK_K, sizeof(block_q4_K), dequantize_row_q4_k, nullptr},
    {GgmlType::kQ5_K, "Q5_K", QK_K, sizeof(block_q5_K), dequantize_row_q5_k, nullptr},
    {GgmlType::kQ6_K, "Q6_K", QK_K, sizeof(block_q6_K), dequantize_row_q6_k, nullptr},
    {GgmlType::kQ8_K, "Q8_K", QK_K, sizeof(block_q8_K), dequantize_row_q8_k, nullptr},
    {GgmlType::kIQ4_NL, "IQ4_NL", QK, sizeof(block_iq4_nl), dequantize_row_iq4_nl, nullptr},
    {GgmlType::kIQ4_XS, "IQ4_XS", QK_K, sizeof(block_iq4_xs), dequantize_row_iq4_xs, nullptr},
    {GgmlType::kMXFP4, "MXFP4", QK, sizeof(block_mxfp4), dequantize_row_mxfp4, nullptr},
    {GgmlType::kI8, "I8", 1, 1, nullptr, nullptr},
    {GgmlType::kI16, "I16", 1, 2, nullptr, nullptr},
    {GgmlType::kI32, "I32", 1, 4, nullptr, nullptr},
    {GgmlType::kI64, "I64", 1, 8, nullptr, nullptr},
    {GgmlType::kF64, "F64", 1, 8, nullptr, nullptr},
    {GgmlType::kQ8_0Nested, "Q8_0 nested", QK, sizeof(block_q8_0), dequantize_row_q8_0, quantize_row_q8_0},
    {GgmlType::kQ8_0Lean, "Q8_0 lean", QK, sizeof(block_q8_0), dequantize_row_q8_0_lean, quantize_row_q8_0},
};
constexpr int kFileTypesCount = sizeof(kTraits) / sizeof(kTraits[0]) - 2;
static_assert(kTraits[kFileTypesCount].type == GgmlType::kQ8_0Nested);

}  // namespace

const QuantTraits* quant_traits(uint32_t ggml_type_id) {
  for (const QuantTraits& t : kTraits) {
    if (static_cast<uint32_t>(t.type) == ggml_type_id) return &t;
  }
  return nullptr;
}

const QuantTraits* quant_traits_by_name(const char* name) {
  for (const QuantTraits& t : kTraits) {
    if (strcmp(t.name, name) == 0) return &t;
  }
  return nullptr;
}

const QuantTraits* quant_traits_all(int* n_rows) {
  *n_rows = kFileTypesCount;
  return kTraits;
}

}  // namespace tandem
