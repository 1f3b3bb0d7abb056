// One matrix product by oneDNN, weights in the layout it prefers: what dense_bench compares with.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace tandem {

class OneDnnMatmul {
 public:
  // Runs on the calling thread alone. y[M][N] = x[M][K] * w[N][K]^T. as_bf16: weights and activations rounded to bfloat16, sums in
  // float; else all float. Throws dnnl::error where oneDNN refuses.
  OneDnnMatmul(int64_t M, int64_t N, int64_t K, const float* x, const float* w, bool as_bf16);
  ~OneDnnMatmul();
  void run();
  const std::vector<float>& y() const { return y_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::vector<float> y_;
};

}  // namespace tandem
