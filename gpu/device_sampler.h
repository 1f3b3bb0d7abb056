// Draws on the device for decode steps: what the rows ask for goes over when it changes, ids and log-probabilities
// come back. Confined to the engine thread.
#pragma once

#include <span>
#include <vector>

#include "gpu/device_buffer.h"
#include "kernels/device_sample.cuh"
#include "model/sampler.h"

namespace tandem {

// A row's logit_bias, as it lies in device memory.
struct DeviceBias {
  int32_t tokens[128];
  float values[128];
  bool operator==(const DeviceBias&) const = default;
};

class DeviceSampler {
 public:
  void plan(int max_rows, int vocab_size, int context_tokens);
  int64_t workspace_bytes() const { return static_cast<int64_t>(device_.n_bytes()); }
  Status allocate(cudaStream_t stream);

  // Whether the device can draw these: one request a row, in order, none with more biases, masked tokens or tokens before
  // it (of a penalty) than there is room for.
  bool serves(std::span<const SampleRequest> requests, int n_rows) const;
  // Draws from logits [n][vocab_size]; results are copied to the host behind. next_tokens and positions (device): the
  // next step's inputs, written if `advances`.
  Status enqueue(std::span<const SampleRequest> requests, const float* logits, int32_t* positions, int32_t* next_tokens,
                 bool advances, cudaStream_t stream);
  // After the host has waited for that.
  void read(std::span<SampleResult> results);

 private:
  static constexpr int kMostMasked = 32, kMostBiases = 128, kMostHistory = 16384;
  Status send_histories(std::span<const SampleRequest> requests, cudaStream_t stream);
  int max_rows_ = 0, vocab_size_ = 0, history_capacity_ = 0;
  DevicePool device_;
  PinnedPool pinned_;
  size_t rows_at_ = 0, masked_at_ = 0, bias_at_ = 0, history_at_ = 0, results_at_ = 0, adjusted_at_ = 0, counts_at_ = 0;
  size_t host_rows_at_ = 0, host_masked_at_ = 0, host_bias_at_ = 0, host_history_at_ = 0, host_results_at_ = 0;
  CudaEvent sent_;
  bool is_sent_ = false;
  std::vector<DeviceSampleRow> rows_;   // as the device has them
  std::vector<int32_t> masked_;         // [max_rows][kMostMasked]
  std::vector<DeviceBias> biases_;      // [max_rows]
  std::vector<std::vector<int32_t>> histories_;  // per row: tokens from the sequence's first on
};

}  // namespace tandem
