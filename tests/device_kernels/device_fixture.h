// What tests of kernels/*.cu share. The same bodies run on the stand-in of tests/simt, under several orders of threads and
// blocks and with every access observed, and on a card (tests/run_all --device), where TANDEM_SIMT is not defined.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>  // after the library: __noinline__ is a macro of CUDA's

#include "kernels/kernel_table.h"

#if defined(TANDEM_SIMT)
#include "simt.h"
#endif

namespace tandem {

// n values in device memory, aligned as cudaMalloc aligns.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t n, int fill = 0) : n_(n) {
    REQUIRE(cudaMalloc(&data_, n * sizeof(T)) == cudaSuccess);
    REQUIRE(cudaMemset(data_, fill, n * sizeof(T)) == cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.data(), values.size()) {}
  DeviceArray(const T* values, size_t n) : n_(n) {
    REQUIRE(cudaMalloc(&data_, n * sizeof(T)) == cudaSuccess);
    REQUIRE(cudaMemcpy(data_, values, n * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  DeviceArray(DeviceArray&& o) noexcept : data_(std::exchange(o.data_, nullptr)), n_(o.n_) {}
  DeviceArray& operator=(DeviceArray&& o) noexcept {
    std::swap(data_, o.data_), std::swap(n_, o.n_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }
  T* get() const { return data_; }
  size_t size() const { return n_; }
  std::vector<T> read() const {
    std::vector<T> out(n_);
    REQUIRE(cudaMemcpy(out.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return out;
  }

 private:
  T* data_ = nullptr;
  size_t n_ = 0;
};

// Orders of threads and blocks that a test runs under; a card has its own.
#if defined(TANDEM_SIMT)
constexpr uint64_t kOrders[] = {0, 1, 2};
#else
constexpr uint64_t kOrders[] = {0};
#endif

// The device as new, for one run; at its end no detector may have reported anything. Declare it before arrays.
class DeviceRun {
 public:
  explicit DeviceRun(uint64_t order = 1);
  ~DeviceRun();
  void finish(cudaError_t launched);  // waits; CHECKs that all went well
};

// A row-major matrix of weights packed as the device reads it.
struct DeviceMatrix {
  DeviceArray<uint8_t> bytes;
  PackedMatrix matrix;  // data: device
};
DeviceMatrix device_matrix(GgmlType type, const uint8_t* rows, int64_t n_rows, int64_t n_cols);

// quantize_act of the reference, rows act_row_bytes apart.
std::vector<uint8_t> quantized(const std::vector<float>& x, int64_t n_cols);

bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace tandem
