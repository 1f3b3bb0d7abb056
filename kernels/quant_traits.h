// One row per GGUF tensor type: name, block length, block bytes, dequantizer. Numbers are those of
// the GGUF file format (ggml type ids).
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tandem {

enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kBF16 = 30,
  kMXFP4 = 39,
  // Packed forms of Q8_0 that no file has (tile_layout.h). Their rows are Q8_0's, read whole or by the
  // four high bits of each quant alone.
  kQ8_0Nested = 0x10000,
  kQ8_0Lean = 0x10001,
};

struct QuantTraits {
  GgmlType type;
  const char* name;  // "Q4_K"
  int block_size;    // values a block
  int block_bytes;
  // n values (multiple of block_size) to floats. The definition of the format. nullptr: not a
  // weight type.
  void (*dequantize_row)(const uint8_t* blocks, int64_t n, float* out);
  // Floats to blocks, round to nearest; nullptr where only reading is served.
  void (*quantize_row)(const float* x, int64_t n, uint8_t* blocks);
};

// Whether files have it: the others are packed forms.
constexpr bool is_file_type(uint32_t ggml_type_id) { return ggml_type_id < 0x10000; }

// nullptr for ids that are not in the table.
const QuantTraits* quant_traits(uint32_t ggml_type_id);
const QuantTraits* quant_traits_by_name(const char* name);
const QuantTraits* quant_traits_all(int* n_rows);  // those of files

// IEEE half and bfloat16 to float and back (round to nearest even), in plain integer arithmetic.
float half_to_float(uint16_t h);
uint16_t float_to_half(float f);
float bf16_to_float(uint16_t b);
uint16_t float_to_bf16(float f);

}  // namespace tandem
