// CUDA's errors as Status. Included by gpu/*.cc alone.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/status.h"

namespace tandem {

// kExhausted: no device memory. kInternal: a call that was wrong whatever the device does. All else, the errors that
// stay until the process ends among them, is kUnavailable: the worker goes, and another one tries.
inline Status cuda_status(cudaError_t error, const char* call) {
  const std::string text = std::string(call) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")";
  switch (error) {
    case cudaErrorMemoryAllocation: return {StatusCode::kExhausted, "device memory: " + text};
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorNotSupported: return {StatusCode::kInternal, text};
    default: return {StatusCode::kUnavailable, "device lost: " + text};
  }
}

#define CUDA_OK(call)                                                               \
  do {                                                                              \
    if (cudaError_t cuda_error = (call); cuda_error != cudaSuccess)                 \
      return ::tandem::cuda_status(cuda_error, #call);                              \
  } while (false)

}  // namespace tandem
