#include "planted_kernels.h"

#include "cuda_fp16.h"

namespace tandem {
extern __shared__ __align__(16) unsigned char dynamic_shared[];
}

namespace planted {
namespace {

__global__ void sum(const float* in, float* out, int n) {
  __shared__ float partial[32];
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  float v = i < n ? in[i] : 0.0f;
  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) total += partial[w];
    out[blockIdx.x] = total;
  }
}

__global__ void barrier_in_branch(float* out) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    out[threadIdx.x] = 1.0f;
    __syncthreads();
  }
}
__global__ void barrier_missed(float* out) {
  float v = 1.0f;
  if (threadIdx.x % 32 < 16) {
    v = __shfl_xor_sync(0xffffffffu, v, 1);
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = v;
}
__global__ void mask_names_ended(float* out) {
  if (threadIdx.x % 32 == 5) return;
  out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}
__global__ void copy_with_offset(const float* in, float* out, int from, int to) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  out[i + to] = in[i + from];
}
__global__ void misaligned_16(const float* in, float* out) {
  const float4 v = reinterpret_cast<const float4*>(in + 1)[threadIdx.x];
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}
__global__ void misaligned_4(const float* in, float* out) {
  out[threadIdx.x] = *reinterpret_cast<const float*>(reinterpret_cast<const char*>(in) + 4 * threadIdx.x + 2);
}
__global__ void unwritten_static(float* out) {
  __shared__ float tile[64];
  if (threadIdx.x != 7) tile[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}
__global__ void unwritten_dynamic(float* out, int n_written) {
  float* tile = reinterpret_cast<float*>(tandem::dynamic_shared);
  if (static_cast<int>(threadIdx.x) < n_written) tile[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}
__global__ void shared_race_write(float* out) {
  __shared__ float word;
  if (threadIdx.x == 0 || threadIdx.x == 40) word = static_cast<float>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = word;
}
__global__ void shared_race_read(float* out) {
  __shared__ float tile[1024];
  tile[threadIdx.x] = 0.0f;
  __syncthreads();
  tile[threadIdx.x] = static_cast<float>(threadIdx.x);
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}
__global__ void block_race_read(float* out) {
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<float>(blockIdx.x);
  if (blockIdx.x > 0 && threadIdx.x == 0) out[blockIdx.x] += out[blockIdx.x - 1];
  if (blockIdx.x == 0 && threadIdx.x == 0) out[0] += out[gridDim.x - 1];
}
__global__ void last_block(const float* in, float* out, unsigned* counter) {
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    out[1 + blockIdx.x] = in[blockIdx.x];
    __threadfence();
    is_last = atomicAdd(counter, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0) {
    float total = 0.0f;
    for (unsigned i = 0; i < gridDim.x; ++i) total += out[1 + i];
    out[0] = total;
  }
}
__device__ __attribute__((noinline)) float deep(int n, float v) {
  float frame[1024];
  asm volatile("" : : "r"(frame) : "memory");  // it is somebody else's business too
  frame[n % 1024] = v;
  return n == 0 ? frame[0] : frame[n % 1024] + deep(n - 1, v) * frame[n % 7];
}
__global__ void deep_stack(float* out) { out[threadIdx.x] = deep(40, 1.0f); }
__global__ void trap() { __trap(); }
__global__ void copy_wide(const float4* in, float4* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x]; }
__global__ void copy_strided(const float* in, float* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  out[i] = in[i * 32 % n];
}

}  // namespace

cudaError_t launch(Kind kind, const float* in, float* out, unsigned* counter, int n, int n_blocks, int n_threads, cudaStream_t stream) {
  cudaLaunchConfig_t c;
  c.gridDim = dim3(static_cast<unsigned>(n_blocks));
  c.blockDim = dim3(static_cast<unsigned>(n_threads));
  c.stream = stream;
  switch (kind) {
    case Kind::kSum: return cudaLaunchKernelEx(&c, sum, in, out, n);
    case Kind::kBarrierInBranch: return cudaLaunchKernelEx(&c, barrier_in_branch, out);
    case Kind::kBarrierMissed: return cudaLaunchKernelEx(&c, barrier_missed, out);
    case Kind::kMaskNamesEnded: return cudaLaunchKernelEx(&c, mask_names_ended, out);
    case Kind::kReadBeyond: return cudaLaunchKernelEx(&c, copy_with_offset, in, out, 1, 0);
    case Kind::kWriteBeyond: return cudaLaunchKernelEx(&c, copy_with_offset, in, out, 0, 1);
    case Kind::kReadBefore: return cudaLaunchKernelEx(&c, copy_with_offset, in, out, -1, 0);
    case Kind::kMisaligned16: return cudaLaunchKernelEx(&c, misaligned_16, in, out);
    case Kind::kMisaligned4: return cudaLaunchKernelEx(&c, misaligned_4, in, out);
    case Kind::kUnwrittenStatic: return cudaLaunchKernelEx(&c, unwritten_static, out);
    case Kind::kUnwrittenDynamic: c.dynamicSmemBytes = static_cast<size_t>(n_threads) * 4; return cudaLaunchKernelEx(&c, unwritten_dynamic, out, n_threads - 1);
    case Kind::kDynamicBeyond: c.dynamicSmemBytes = static_cast<size_t>(n_threads) * 4 - 4; return cudaLaunchKernelEx(&c, unwritten_dynamic, out, n_threads);
    case Kind::kSharedRaceWrite: return cudaLaunchKernelEx(&c, shared_race_write, out);
    case Kind::kSharedRaceRead: return cudaLaunchKernelEx(&c, shared_race_read, out);
    case Kind::kBlockRaceRead: return cudaLaunchKernelEx(&c, block_race_read, out);
    case Kind::kLastBlock: return cudaLaunchKernelEx(&c, last_block, in, out, counter);
    case Kind::kDeepStack: return cudaLaunchKernelEx(&c, deep_stack, out);
    case Kind::kTrap: return cudaLaunchKernelEx(&c, trap);
    case Kind::kCopyWide: return cudaLaunchKernelEx(&c, copy_wide, reinterpret_cast<const float4*>(in), reinterpret_cast<float4*>(out));
    case Kind::kCopyStrided: return cudaLaunchKernelEx(&c, copy_strided, in, out, n);
  }
  return cudaErrorInvalidValue;
}

__attribute__((noinline)) float host_read(const float* p) { return *p; }
__attribute__((noinline)) void host_write(float* p, float value) { *p = value; }

}  // namespace planted
