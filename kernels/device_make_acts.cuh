// How a warp stores 32 values of a row as activations (device_acts.cuh): ActBlock as quantize_act of the CPU makes
// it, bit for bit; the same values as floats; the sum of squares of what they were before the norm's weights.
#pragma once

#include "kernels/device_acts.cuh"
#include "kernels/device_math.cuh"
#include "kernels/matvec.cuh"

namespace tandem {

// Lane l holds value l. Called by all lanes.
TANDEM_DEVICE void store_act_block(float x, ActBlock* out) {
  const int lane = lane_of_thread();
  const bool is_first = lane < 16;
  const float amax = warp_max(fabsf(x));  // fmaxf drops NaNs; the vote below finds them
  const bool finite = __all_sync(kWholeWarp, isfinite(x));
  const bool is_zero = !(finite && amax > kActTiny);
  const float inverse = is_zero ? 0.0f : kActSteps / amax;
  const float scaled = finite ? x * inverse : 0.0f;
  // In steps of 16 d. The second value's low four bits go first: the first value makes up for them.
  const int second = static_cast<int>(rintf(__shfl_xor_sync(kWholeWarp, scaled, 16)));  // lanes 0..15
  const int low = second & 15;
  const float noise = static_cast<float>(low) * 0.0625f;
  const int first = static_cast<int>(rintf(scaled - noise));
  const int coarse = (first + 8) >> 4, high = first - 16 * coarse;  // high: -8 ... 7
  int fine = 16 * high + low;
  fine = fine < -127 ? -127 : fine;
  const int coarse2 = (second >> 4) - high;
  if (is_first) {
    out->coarse[lane] = static_cast<int8_t>(is_zero ? 0 : coarse);
    out->coarse[lane + 16] = static_cast<int8_t>(is_zero ? 0 : coarse2);
    out->fine[lane] = static_cast<int8_t>(is_zero ? 0 : fine);
  }
  const bool counts = is_first && !is_zero;
  const int sum0 = warp_sum_int(counts ? 256 * coarse + fine : 0);
  const int sum1 = warp_sum_int(counts ? 256 * coarse2 + 16 * fine : 0);
  const int fine_sum = warp_sum_int(counts ? fine : 0);
  if (lane == 0) {
    const int both = sum0 + sum1;
    const float d = !finite ? NAN : is_zero ? 0.0f : amax / kActSteps * 0.0625f;
    out->d = d;
    out->s = d * static_cast<float>(both);
    out->c8 = -8 * both;
    out->c16 = -16 * both;
    out->c128 = -128 * both;
    out->c32[0] = -32 * sum0;
    out->c32[1] = -32 * sum1;
    out->fine_128 = 128 * fine_sum;
  }
}

// Values 32 `block` ... of row m. x: what activations are made of; unscaled: what the norm sums the squares of.
// Called by all lanes.
TANDEM_DEVICE void store_acts(const DeviceActs& acts, int64_t m, int64_t block, float x, float unscaled) {
  if (acts.blocks) {
    uint8_t* row = acts.blocks + m * static_cast<int64_t>(act_row_bytes_of(acts.n_cols));
    store_act_block(x, reinterpret_cast<ActBlock*>(row) + block);
  }
  if (acts.floats) acts.floats[m * acts.n_cols + block * QK + lane_of_thread()] = x;
  if (acts.sum_squares) {
    const float sum = warp_sum(unscaled * unscaled);
    if (lane_of_thread() == 0) acts.sum_squares[m * (acts.n_cols / QK) + block] = sum;
  }
}

// activation(g) * up.
TANDEM_DEVICE float gated(GateActivation activation, float g, float up) {
  if (activation == GateActivation::kSilu) return g / (1.0f + expf(-g)) * up;
  const float inner = 0.79788456080286535588f * (g + 0.044715f * g * g * g);
  return 0.5f * g * (1.0f + tanhf(inner)) * up;
}

// 1 / rms of row m of activations with sums of squares, by one warp; every lane gets it.
TANDEM_DEVICE float inverse_rms(const DeviceActs& acts, int64_t m, float eps) {
  const int64_t n = acts.n_cols / QK;
  const float* sums = acts.sum_squares + m * n;
  float sum = 0;
  for (int64_t i = lane_of_thread(); i < n; i += 32) sum += sums[i];
  return 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(acts.n_cols) + eps);
}

}  // namespace tandem
