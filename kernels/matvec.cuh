// Products of packed weights with few activation rows, on the device: y[m][n] = sum_k act[m][k] * w[n][k].
// Weights lie in device memory in the tiled form of tile_layout.h, byte for byte as tiled::pack_tiles makes
// it: the CPU's vector columns read the same bytes, so one pack file serves both, and an integrated GPU reads
// the CPU's own copy. A nested Q8_0 matrix is served as it is, with the bits of a plain one, and as its lean_form(), of which
// only the first plane is read.
//
// Order of the sums of one result, the same for every M, path kDp4a or kMma, grid and card: K is cut into
// slices of 8 blocks of 32; in a slice the even blocks are one chain of fmas in ascending order, the odd ones
// another, added at its end; slices are added in ascending order. A block's products are exact int32 sums.
// kFloat multiplies floats, with the same slices and chains.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device_acts.cuh"
#include "kernels/kernel_table.h"

namespace tandem {

// kDp4a and kMma read quantized activations and give the same bits; kMma is quicker for more rows (its use is a
// choice by measurement). kFloat reads float activations: it is what F32, F16 and BF16 weights need (the other
// two refuse them), and the reference mode of the rest; to mix it with the others for one product would break
// invariance.
enum class DotPath : uint8_t { kDp4a, kMma, kFloat };

struct MatvecProduct {
  PackedMatrix weight;          // data: device memory, aligned to 64
  const float* bias = nullptr;  // [n_rows] device, or null
  float* out = nullptr;         // kStore: [M][out_stride]; other ends do not use it
  int64_t out_stride = 0;       // floats
};

// What becomes of the results.
enum class MatvecEnd : uint8_t {
  kStore,     // out = result + bias, softcapped if softcap > 0. 1 to 3 products, any n_rows up to two million together
  kResidual,  // residual += result + bias; `next` = activations of residual * next_norm. 1 product
  kGated,     // next = activation(result of product 0) * result of product 1. 2 products of one shape
};
enum class GateActivation : uint8_t { kSilu, kGeluTanh };

struct MatvecParams {
  DeviceActs acts;                    // n_cols = K of every product
  const int32_t* act_rows = nullptr;  // device [M]: which row of acts row m reads; null: row m
  int n_rows = 0;                     // M, at least 1
  float norm_eps = 0;                 // used with acts.sum_squares
  int n_products = 0;
  MatvecProduct products[3];
  MatvecEnd end = MatvecEnd::kStore;
  float softcap = 0;                  // kStore
  float* residual = nullptr;          // kResidual: device [M][n_rows of the product], row m = result m
  const float* next_norm = nullptr;   // kResidual: [n_rows of the product]; null: factor 1
  GateActivation gate = GateActivation::kSilu;
  // kResidual, kGated: n_cols = n_rows of the product, a multiple of 32. Parts that are not null are written:
  // sum_squares only with kResidual, where it must be given if blocks or floats are (all null: only the
  // residual is kept).
  DeviceActs next;
};

// cudaErrorInvalidValue: a size, pointer or alignment above does not hold; cudaErrorNotSupported: the path
// doesn't serve a weight type, or kGated has products of two types. Products of different types take a launch
// each (kStore), else all of params is one launch. Adds the number of launches to *n_launches if not null.
cudaError_t launch_matvec(const MatvecParams& params, DotPath path, cudaStream_t stream,
                          int* n_launches = nullptr);

// Whether launch_matvec serves the type on that path.
bool matvec_serves(GgmlType type, DotPath path);

}  // namespace tandem
