// A decode step of a shape with random weights, as one graph of the shipped launches: what a card needs for the arithmetic,
// without engine and worker.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device_acts.cuh"
#include "kernels/device_sample.cuh"
#include "kernels/matvec.cuh"
#include "kernels/paged_attention.cuh"
#include "tests/bench/gpu/shapes.h"

namespace tandem::bench {

// Ends the program with the call's name and error.
void check(cudaError_t error, const char* what);

class Buffer {  // device memory, zeros
 public:
  Buffer() = default;
  explicit Buffer(size_t n_bytes);
  ~Buffer();
  Buffer(Buffer&& o) noexcept;
  Buffer& operator=(Buffer&& o) noexcept;
  template <typename T>
  T* get() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class Weights {  // [n_rows][n_cols], random, tiled
 public:
  Weights(GgmlType type, int64_t n_rows, int64_t n_cols, uint32_t seed);
  const PackedMatrix& matrix() const { return matrix_; }
  size_t n_bytes() const { return n_bytes_; }

 private:
  size_t n_bytes_;
  Buffer bytes_;
  PackedMatrix matrix_;
};

class ActBuffers {
 public:
  ActBuffers(int64_t M, int64_t n_cols);
  DeviceActs acts() const;  // all three parts

 private:
  int64_t n_cols_;
  Buffer blocks_, floats_, sums_;
};

class DecodeStep {
 public:
  // Each row has `context` tokens in pages of its own. All memory is taken here.
  DecodeStep(const Shape& shape, int batch, int context, cudaStream_t stream);
  ~DecodeStep();
  void run();  // one graph launch
  int n_launches() const { return n_launches_; }
  std::vector<int32_t> tokens() const;  // drawn by the last run

 private:
  struct Layer {
    Weights wq, wk, wv, wo, gate, up, down;
  };
  void launch_all();
  void launch_layer(const Layer& layer, size_t index);

  const Shape shape_;
  const int batch_, context_;
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
  int n_launches_ = 0;
  DotPath path_;
  KvLayout layout_;
  std::vector<Layer> layers_;
  std::unique_ptr<Weights> output_;
  ActBuffers hidden_, attention_, ffn_;
  Buffer x_, norm_, q_, k_, v_, logits_, pool_, tables_, positions_, tokens_, cos_sin_, inv_freq_, factor_, records_, arrivals_;
  Buffer sample_rows_, results_, adjusted_, counts_;
};

}  // namespace tandem::bench
