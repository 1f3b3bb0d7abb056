// Activations in device memory, between the launch that makes them and the products that read them. One row
// is one token of the step; M rows. Whoever makes them quantizes them, so that no launch does only that.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/act_block.h"

namespace tandem {

// DESIGN. An RMS norm divides a row by one number, known only when the whole row is. The makers of a row
// (many blocks of threads, each 32 values) therefore store x * norm weight, quantized in blocks of 32 (a
// block's scale is its own, so nothing is lost), and each block's sum of x^2; the product that reads them
// multiplies its results by 1 / sqrt(sum / n_cols + eps). So no launch of its own norms a row.
struct DeviceActs {
  int64_t n_cols = 0;       // a multiple of 32
  // Either may be null; which one is read depends on the product's path (matvec.cuh).
  uint8_t* blocks = nullptr;  // [M] rows of ActBlock[n_cols/32], act_row_bytes_of(n_cols) apart, aligned to 64
  float* floats = nullptr;    // [M][n_cols], aligned to 64
  // [M][n_cols/32]: sums of squares of 32 values each; null: the values stand as they are.
  float* sum_squares = nullptr;
};

// Bytes of each part of M rows.
static constexpr size_t device_acts_block_bytes(int64_t M, int64_t n_cols) {
  return static_cast<size_t>(M) * act_row_bytes_of(n_cols);
}
static constexpr size_t device_acts_float_bytes(int64_t M, int64_t n_cols) {
  return static_cast<size_t>(M) * static_cast<size_t>(n_cols) * sizeof(float);
}
static constexpr size_t device_acts_sum_bytes(int64_t M, int64_t n_cols) {
  return static_cast<size_t>(M) * static_cast<size_t>(n_cols / QK) * sizeof(float);
}

}  // namespace tandem
