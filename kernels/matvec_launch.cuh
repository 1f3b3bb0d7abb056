// Between launch_matvec, which checks and shares out, and the kernels of each type (matvec_<type>.cu).
#pragma once

#include "kernels/device_tiles.cuh"
#include "kernels/matvec.cuh"

namespace tandem {

constexpr int kRowThreads = 512;  // most threads a block: 128 registers each
constexpr int kMmaThreads = 256;

struct MatvecArgs {
  struct Product {
    DeviceTiles tiles;
    const float* bias;
    float* out;
    int64_t out_stride, n_rows, n_tiles, n_pairs;
  };
  DeviceActs acts;
  const int32_t* act_rows;
  int64_t act_row_bytes;  // of what the path reads
  int n_rows, n_blocks;  // M, K / 32
  float norm_eps, softcap;
  Product products[3];
  MatvecEnd end;
  GateActivation gate;
  float* residual;
  const float* next_norm;
  DeviceActs next;
};

// One a type. n_pairs: of all products, at most kMostPairs.
constexpr int64_t kMostPairs = 65535;  // the grid's y
#define TANDEM_DEVICE_TYPES(X) X(kF32) X(kF16) X(kBF16) TANDEM_TILED_TYPES(X)
#define TANDEM_DECLARE(type) \
  cudaError_t launch_matvec_##type(const MatvecArgs& args, DotPath path, int64_t n_pairs, int threads, cudaStream_t stream);
TANDEM_DEVICE_TYPES(TANDEM_DECLARE)
#undef TANDEM_DECLARE

}  // namespace tandem
