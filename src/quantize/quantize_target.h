// The types a model can be written in: one row each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/quant_traits.h"

namespace tandem {

struct QuantizeTarget {
  GgmlType type;
  const char* option;  // "q4_k", as --to takes it
  int file_type;       // general.file_type of the GGUF specification
  // What stands in where a row is no multiple of the type's block; the type itself: never needed.
  GgmlType stand_in;
  void (*quantize_row)(const float* x, int64_t n, uint8_t* blocks);
  // What columns that count differently change (row_quantizers.h); null: nothing, the type is near exact.
  void (*improve_row)(const float* x, const float* weight, int64_t n, uint8_t* blocks);
};

std::span<const QuantizeTarget> quantize_targets();
// By option, in either case; nullptr if there is none.
const QuantizeTarget* find_quantize_target(std::string_view option);
// The row of a type that is known to be in the table (a stand-in).
const QuantizeTarget& quantize_target_of(GgmlType type);
// "q8_0, q4_0, ...", for messages; has_weights: those with improve_row alone.
std::string quantize_target_options(bool has_weights = false);

}  // namespace tandem
