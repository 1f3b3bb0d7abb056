// Rows of floats: one warp makes 32 values at a time, so that whatever it makes can be quantized at once.
#include "kernels/device_rows.cuh"

#include "kernels/device_launch.cuh"
#include "kernels/device_make_acts.cuh"
#include "kernels/matvec_forms.cuh"
#include "kernels/matvec_launch.cuh"
#include "kernels/paged_attention.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct EmbedArgs {
  EmbedParams p;
  DeviceTiles tiles;
};

// One block of threads a token.
template <GgmlType kType>
__global__ void __launch_bounds__(kThreads) embed_kernel(const EmbedArgs a) {
  using Form = DeviceForm<kType>;
  const int64_t m = blockIdx.x, hidden = a.p.table.n_cols;
  const int32_t token = a.p.tokens[m];
  const bool is_token = token >= 0 && token < a.p.table.n_rows;
  const TilePlanes tile = tile_at<kType>(a.tiles, is_token ? token / kTileRows : 0);
  const int row = is_token ? token % kTileRows : 0, lane = lane_of_thread();
  for (int b = warp_of_thread(); b < hidden / QK; b += kWarps) {
    float x;
    if constexpr (Form::kIsPlain) {
      x = plain_value<kType>(tile.first, int64_t{b} * QK + lane, row);
    } else {
      const BlockScales s = Form::template scales<true, false>(tile, b, row);
      const int i = lane % 16 / 4;
      uint32_t low, high;
      Form::unpack_pair(Form::load_pair(tile, b, row, i), i, &low, &high);
      const bool is_last = lane >= 16;
      x = weight_value<kType>(is_last ? high : low, lane % 4, s, is_last);
    }
    x = is_token ? x * a.p.scale : 0.0f;
    const int64_t at = b * QK + lane;
    a.p.x[m * hidden + at] = x;
    store_acts(a.p.next, m, b, a.p.next_norm ? x * a.p.next_norm[at] : x, x);
  }
}

__global__ void __launch_bounds__(kThreads) rotations_kernel(const RotationParams p) {
  const int m = static_cast<int>(blockIdx.x), pos = p.positions[m];
  if (pos < 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < p.n_pairs; i += kThreads) {
    double s, c;
    sincos(static_cast<double>(pos) * static_cast<double>(p.inv_freq[i]), &s, &c);
    float* out = p.cos_sin + 2 * (static_cast<int64_t>(m) * p.n_pairs + i);
    out[0] = static_cast<float>(c) * p.factor[i];
    out[1] = static_cast<float>(s) * p.factor[i];
  }
}

// One block of threads a row.
__global__ void __launch_bounds__(kThreads) add_branch_kernel(const BranchParams p) {
  __shared__ float sums[kWarps];
  const int64_t m = blockIdx.x;
  const float* branch = p.branch + m * p.hidden;
  float* residual = p.residual + m * p.hidden;
  float scale = 1.0f;
  if (p.post_norm) {
    float sum = 0;
    for (int64_t i = threadIdx.x; i < p.hidden; i += kThreads) sum += branch[i] * branch[i];
    sum = warp_sum(sum);
    if (lane_of_thread() == 0) sums[warp_of_thread()] = sum;
    __syncthreads();
    float total = 0;
    for (int i = 0; i < kWarps; ++i) total += sums[i];
    scale = 1.0f / sqrtf(total / static_cast<float>(p.hidden) + p.norm_eps);
  }
  for (int b = warp_of_thread(); b < p.hidden / QK; b += kWarps) {
    const int64_t i = b * QK + lane_of_thread();
    const float y = p.post_norm ? branch[i] * scale * p.post_norm[i] : branch[i];
    const float x = residual[i] + y;
    residual[i] = x;
    store_acts(p.next, m, b, p.next_norm ? x * p.next_norm[i] : x, x);
  }
}

// Grid: x = blocks of 32 values, kWarps at once; y = rows.
__global__ void __launch_bounds__(kThreads) gated_kernel(const float* gate, const float* up, int64_t n_cols,
                                                         GateActivation activation, const DeviceActs next) {
  const int64_t m = blockIdx.y, b = blockIdx.x * kWarps + warp_of_thread();
  if (b >= n_cols / QK) return;
  const int64_t i = m * n_cols + b * QK + lane_of_thread();
  const float x = gated(activation, gate[i], up[i]);
  store_acts(next, m, b, x, x);
}

__global__ void __launch_bounds__(kThreads) quantize_kernel(const DeviceActs acts) {
  const int64_t m = blockIdx.y, b = blockIdx.x * kWarps + warp_of_thread();
  if (b >= acts.n_cols / QK) return;
  uint8_t* row = acts.blocks + m * static_cast<int64_t>(act_row_bytes_of(acts.n_cols));
  store_act_block(acts.floats[m * acts.n_cols + b * QK + lane_of_thread()], reinterpret_cast<ActBlock*>(row) + b);
}

bool are_good(const DeviceActs& a, int64_t n_cols) {
  const auto is_aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; };
  return a.n_cols == n_cols && n_cols > 0 && n_cols % QK == 0 && (a.blocks || a.floats) && is_aligned(a.blocks) &&
         is_aligned(a.floats);
}

dim3 grid_of_blocks(int64_t n_cols, int n_rows) {
  return dim3(static_cast<unsigned>((n_cols / QK + kWarps - 1) / kWarps), static_cast<unsigned>(n_rows));
}

}  // namespace

cudaError_t launch_embed(const EmbedParams& p, cudaStream_t stream) {
  if (!tile_shape(p.table.type)) return cudaErrorNotSupported;
  if (!p.table.data || p.table.n_rows < 1 || !p.tokens || !p.x || p.n_rows < 1 || !are_good(p.next, p.table.n_cols)) {
    return cudaErrorInvalidValue;
  }
  const EmbedArgs args = {p, device_tiles(p.table)};
  const dim3 grid(static_cast<unsigned>(p.n_rows));
  switch (p.table.type) {
#define TANDEM_CASE(type) \
  case GgmlType::type:    \
    return launch_kernel(embed_kernel<GgmlType::type>, grid, kThreads, stream, args);
    TANDEM_DEVICE_TYPES(TANDEM_CASE)
#undef TANDEM_CASE
    default:
      return cudaErrorNotSupported;
  }
}

cudaError_t launch_rotations(const RotationParams& p, cudaStream_t stream) {
  if (!p.positions || !p.inv_freq || !p.factor || !p.cos_sin || p.n_rows < 1 || p.n_pairs < 1) return cudaErrorInvalidValue;
  return launch_kernel(rotations_kernel, dim3(static_cast<unsigned>(p.n_rows)), kThreads, stream, p);
}

cudaError_t launch_add_branch(const BranchParams& p, cudaStream_t stream) {
  if (!p.branch || !p.residual || p.n_rows < 1 || !are_good(p.next, p.hidden)) return cudaErrorInvalidValue;
  return launch_kernel(add_branch_kernel, dim3(static_cast<unsigned>(p.n_rows)), kThreads, stream, p);
}

cudaError_t launch_gated(const float* gate, const float* up, int n_rows, int64_t n_cols, GateActivation activation,
                         const DeviceActs& next, cudaStream_t stream) {
  if (!gate || !up || n_rows < 1 || n_rows > 65535 || !are_good(next, n_cols)) return cudaErrorInvalidValue;
  return launch_kernel(gated_kernel, grid_of_blocks(n_cols, n_rows), kThreads, stream, gate, up, n_cols, activation, next);
}

cudaError_t launch_quantize(const DeviceActs& acts, int n_rows, cudaStream_t stream) {
  if (!acts.floats || !acts.blocks || n_rows < 1 || n_rows > 65535 || !are_good(acts, acts.n_cols)) return cudaErrorInvalidValue;
  return launch_kernel(quantize_kernel, grid_of_blocks(acts.n_cols, n_rows), kThreads, stream, acts);
}

}  // namespace tandem
