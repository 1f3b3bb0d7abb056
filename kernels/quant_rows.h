// The scalar row functions that quant_traits.cc puts into its table. x and blocks never alias.
#pragma once

#include <stdint.h>

namespace tandem {

// n values (a multiple of the block) from `blocks` to `out`.
void dequantize_row_f32(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_f16(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_bf16(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_q4_0(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_q4_1(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_q5_0(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_q5_1(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_q8_0(const uint8_t* blocks, int64_t n, float* out);
// The level that a quant's high half stands for in the nested form.
void dequantize_row_q8_0_lean(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_q2_k(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_q3_k(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_q4_k(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_q5_k(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_q6_k(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_q8_k(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_iq4_nl(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_iq4_xs(const uint8_t* blocks, int64_t n, float* out);
void dequantize_row_mxfp4(const uint8_t* blocks, int64_t n, float* out);

// n floats to blocks, each value to the nearest level of its block.
void quantize_row_f32(const float* x, int64_t n, uint8_t* blocks);
void quantize_row_f16(const float* x, int64_t n, uint8_t* blocks);
void quantize_row_bf16(const float* x, int64_t n, uint8_t* blocks);
void quantize_row_q4_0(const float* x, int64_t n, uint8_t* blocks);
void quantize_row_q4_1(const float* x, int64_t n, uint8_t* blocks);
void quantize_row_q8_0(const float* x, int64_t n, uint8_t* blocks);

// The pieces of super-block headers that packing needs too.
// Six-bit scale and min j (0..7) of Q4_K and Q5_K.
void scale_min_k4(const uint8_t scales[12], int j, uint8_t* scale, uint8_t* min);
// Scale j (0..15) of Q3_K, -32..31.
int scale_k3(const uint8_t scales[12], int j);
// Scale j (0..7) of IQ4_XS, -32..31.
int scale_iq4_xs(uint16_t scales_h, const uint8_t scales_l[4], int j);
// A block of Q8_0 in its nested form (tile_layout.h): value = d * (q - (is_raised ? 128 : 136)).
struct NestedBlock {
  uint16_t d;  // half; the file's or its negative
  bool is_raised;
  uint8_t q[32];
};
void nested_block(const uint8_t* block, NestedBlock* out);
// Half of 2^(e-127): the mantissa table holds doubled values.
float mxfp4_scale(uint8_t e);

}  // namespace tandem
