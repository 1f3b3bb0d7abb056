// Floats to the blocks of a type, by the rules that other tools write files with: the simple types
// bit for bit as ggml's reference, the k-quants by a weighted search over scales. kernels/quantize_ref.cc
// is for values made on the spot (rounds the scale first); these are for files.
//   x: [n], finite    blocks: n / block_size blocks    n: a multiple of the block (the caller checks)
// Thread-safe; x and blocks never alias. A scale past 65504 is stored as infinity: the caller looks.
#pragma once

#include <cstdint>

namespace tandem {

// Scale from the value of largest magnitude, which gets the lowest level.
void quantize_file_row_q4_0(const float* x, int64_t n, uint8_t* blocks);
void quantize_file_row_q5_0(const float* x, int64_t n, uint8_t* blocks);
// Scale and minimum from the two extremes.
void quantize_file_row_q4_1(const float* x, int64_t n, uint8_t* blocks);
void quantize_file_row_q5_1(const float* x, int64_t n, uint8_t* blocks);
// Scale from the largest magnitude, halves away from zero.
void quantize_file_row_q8_0(const float* x, int64_t n, uint8_t* blocks);

// Blocks of 32 with scale and minimum, found by trying 20 step widths (Q4_K) or 15 (Q5_K) around the plain one, each with the
// least-squares scale and minimum of its rounding; a value counts by its magnitude beside the block's rms.
void quantize_file_row_q4_k(const float* x, int64_t n, uint8_t* blocks);
void quantize_file_row_q5_k(const float* x, int64_t n, uint8_t* blocks);
// Blocks of 16 with a scale, found by trying 19 step widths; a value counts by its square.
void quantize_file_row_q6_k(const float* x, int64_t n, uint8_t* blocks);

// The same blocks, better for columns that count differently: each is searched again with
//   weight: [n], >= 0, finite: what a value's squared error is multiplied with
// and replaced where its weighted error, the stored scales rounded, comes out lower. Weights that are all alike gain too (the plain
// scale of the simple types is no best one). Q8_0 has none: its step is 1/127 of the block's largest value.
//   blocks: as the function above made them of x
void improve_file_row_q4_0(const float* x, const float* weight, int64_t n, uint8_t* blocks);
void improve_file_row_q5_0(const float* x, const float* weight, int64_t n, uint8_t* blocks);
void improve_file_row_q4_1(const float* x, const float* weight, int64_t n, uint8_t* blocks);
void improve_file_row_q5_1(const float* x, const float* weight, int64_t n, uint8_t* blocks);
void improve_file_row_q4_k(const float* x, const float* weight, int64_t n, uint8_t* blocks);
void improve_file_row_q5_k(const float* x, const float* weight, int64_t n, uint8_t* blocks);
void improve_file_row_q6_k(const float* x, const float* weight, int64_t n, uint8_t* blocks);

}  // namespace tandem
