// Memory, streams, events and graphs of the device as owners. Confined to the engine thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "gpu/cuda_check.h"

namespace tandem {

// Frees with `kFree` what it holds.
template <typename Handle, cudaError_t (*kFree)(Handle)>
class CudaOwner {
 public:
  CudaOwner() = default;
  explicit CudaOwner(Handle handle) : handle_(handle) {}
  CudaOwner(CudaOwner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  CudaOwner& operator=(CudaOwner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~CudaOwner() {
    if (handle_ != nullptr) kFree(handle_);
  }
  Handle get() const { return handle_; }
  Handle* put() { return &handle_; }  // for a call that makes one; this is empty before

 private:
  Handle handle_ = nullptr;
};
using CudaStream = CudaOwner<cudaStream_t, cudaStreamDestroy>;
using CudaEvent = CudaOwner<cudaEvent_t, cudaEventDestroy>;
using CudaGraph = CudaOwner<cudaGraph_t, cudaGraphDestroy>;
using CudaGraphExec = CudaOwner<cudaGraphExec_t, cudaGraphExecDestroy>;
using DeviceMemory = CudaOwner<void*, cudaFree>;
using PinnedMemory = CudaOwner<void*, cudaFreeHost>;

// One piece of memory that parts are cut out of, each aligned to 256 bytes. First add() all parts, then allocate().
template <typename Owner>
class Pool {
 public:
  size_t add(size_t n_bytes) {  // returns the offset of the part
    const size_t at = n_bytes_;
    n_bytes_ += (n_bytes + 255) / 256 * 256;
    return at;
  }
  size_t n_bytes() const { return n_bytes_; }
  template <typename T = uint8_t>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(memory_.get()) + offset);
  }
  Owner& memory() { return memory_; }

 private:
  Owner memory_;
  size_t n_bytes_ = 0;
};
struct DevicePool : Pool<DeviceMemory> {
  Status allocate() {
    CUDA_OK(cudaMalloc(memory().put(), n_bytes()));
    return ok_status();
  }
};
struct PinnedPool : Pool<PinnedMemory> {
  Status allocate() {
    CUDA_OK(cudaHostAlloc(memory().put(), n_bytes(), cudaHostAllocDefault));
    return ok_status();
  }
};

}  // namespace tandem
