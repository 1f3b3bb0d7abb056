// Launches on rows of floats that are no part of a product: embedding, positions to rotations, what models with
// norms after a branch need, and gate activations where the gate's and up's weights have different types.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device_acts.cuh"
#include "kernels/kernel_table.h"
#include "kernels/matvec.cuh"

namespace tandem {

struct EmbedParams {
  PackedMatrix table;               // [vocab][hidden], device, tiled; every type of tile_layout.h
  const int32_t* tokens = nullptr;  // device [M]; an id outside [0, vocab) gives a row of zeros (padding)
  int n_rows = 0;                   // M
  float scale = 1.0f;
  float* x = nullptr;                // device [M][hidden]: the residual stream
  const float* next_norm = nullptr;  // [hidden]
  DeviceActs next;                   // activations of x * next_norm, as MatvecEnd::kResidual makes them
};
// Values are exactly those of dequantize_row, times scale. cudaErrorInvalidValue as above.
cudaError_t launch_embed(const EmbedParams& params, cudaStream_t stream);

// cos_sin[m][i] = {cos, sin}(positions[m] * inv_freq[i]) * factor[i], angles in double precision; for all ropes
// of a model one after another. Rows with a negative position are left alone.
struct RotationParams {
  const int32_t* positions = nullptr;  // device [M]
  int n_rows = 0;
  const float* inv_freq = nullptr;  // device [n_pairs]
  const float* factor = nullptr;    // device [n_pairs]
  int n_pairs = 0;
  float* cos_sin = nullptr;  // device [M][n_pairs][2]
};
cudaError_t launch_rotations(const RotationParams& params, cudaStream_t stream);

// Models with norms after attention and feed-forward: residual += rms_norm(branch) * post_norm, then `next` as
// MatvecEnd::kResidual makes it. post_norm null: the branch as it is.
struct BranchParams {
  const float* branch = nullptr;  // device [M][hidden]
  int n_rows = 0;
  int64_t hidden = 0;  // a multiple of 32
  const float* post_norm = nullptr;
  float norm_eps = 0;
  float* residual = nullptr;         // device [M][hidden]
  const float* next_norm = nullptr;  // [hidden]
  DeviceActs next;
};
cudaError_t launch_add_branch(const BranchParams& params, cudaStream_t stream);

// next = activation(gate) * up. gate and up: device [M][n_cols].
cudaError_t launch_gated(const float* gate, const float* up, int n_rows, int64_t n_cols, GateActivation activation,
                         const DeviceActs& next, cudaStream_t stream);

}  // namespace tandem
