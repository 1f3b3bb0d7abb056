// The function-call form of a kernel launch, with nothing dynamic in it.
#pragma once

#include <cuda_runtime.h>

namespace tandem {

template <typename... Params, typename... Args>
cudaError_t launch_kernel(void (*kernel)(Params...), dim3 grid, int threads, cudaStream_t stream, Args... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

}  // namespace tandem
