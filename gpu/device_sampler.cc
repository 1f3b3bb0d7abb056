#include "gpu/device_sampler.h"

#include <algorithm>
#include <cstring>

namespace tandem {

void DeviceSampler::plan(int max_rows, int vocab_size) {
  max_rows_ = max_rows;
  vocab_size_ = vocab_size;
  const size_t M = static_cast<size_t>(max_rows), V = static_cast<size_t>(vocab_size);
  rows_at_ = device_.add(M * sizeof(DeviceSampleRow));
  masked_at_ = device_.add(M * kMostMasked * sizeof(int32_t));
  results_at_ = device_.add(M * sizeof(DeviceSampleResult));
  adjusted_at_ = device_.add(M * V * sizeof(float));
  counts_at_ = device_.add(M * V * sizeof(uint32_t));
  host_rows_at_ = pinned_.add(M * sizeof(DeviceSampleRow));
  host_masked_at_ = pinned_.add(M * kMostMasked * sizeof(int32_t));
  host_results_at_ = pinned_.add(M * sizeof(DeviceSampleResult));
}

Status DeviceSampler::allocate(cudaStream_t stream) {
  CHECK_OK(device_.allocate());
  CHECK_OK(pinned_.allocate());
  CUDA_OK(cudaEventCreateWithFlags(sent_.put(), cudaEventDisableTiming));
  CUDA_OK(cudaMemsetAsync(device_.at(counts_at_), 0, static_cast<size_t>(max_rows_) * static_cast<size_t>(vocab_size_) * sizeof(uint32_t), stream));
  rows_.clear();
  masked_.assign(static_cast<size_t>(max_rows_) * kMostMasked, -1);
  return ok_status();
}

bool DeviceSampler::serves(std::span<const SampleRequest> requests, int n_rows) const {
  if (static_cast<int>(requests.size()) != n_rows || n_rows > max_rows_) return false;
  for (size_t i = 0; i < requests.size(); ++i) {
    const SampleRequest& r = requests[i];
    const SamplingParams& p = *r.params;
    if (r.logit_row != static_cast<int>(i) || !p.logit_bias.empty() || p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f ||
        p.frequency_penalty != 0.0f || r.n_top_logprobs > kDeviceTopLogprobs || (p.ignore_eos && r.end_tokens.size() > kMostMasked))
      return false;
  }
  return true;
}

Status DeviceSampler::enqueue(std::span<const SampleRequest> requests, const float* logits, int32_t* positions, int32_t* next_tokens,
                              bool advances, cudaStream_t stream) {
  std::vector<DeviceSampleRow> rows(requests.size());
  std::vector<int32_t> masked = masked_;
  for (size_t i = 0; i < requests.size(); ++i) {
    const SampleRequest& r = requests[i];
    DeviceSampleRow& row = rows[i];
    row.seed = r.params->seed;
    row.choice = r.choice;
    row.temperature = r.params->temperature;
    row.top_p = r.params->top_p, row.min_p = r.params->min_p, row.top_k = r.params->top_k;
    row.n_top_logprobs = r.n_top_logprobs;
    row.forced_token = r.forced_token;
    if (r.params->ignore_eos && !r.end_tokens.empty()) {
      row.n_masked = static_cast<int32_t>(r.end_tokens.size());
      row.masked_tokens = device_.at<int32_t>(masked_at_) + i * kMostMasked;
      std::copy(r.end_tokens.begin(), r.end_tokens.end(), masked.begin() + static_cast<std::ptrdiff_t>(i * kMostMasked));
    }
  }
  const size_t row_bytes = rows.size() * sizeof(DeviceSampleRow);
  if (rows_.size() < rows.size() || masked != masked_ || std::memcmp(rows.data(), rows_.data(), row_bytes) != 0) {
    if (is_sent_) CUDA_OK(cudaEventSynchronize(sent_.get()));  // long ago
    std::memcpy(pinned_.at(host_rows_at_), rows.data(), row_bytes);
    std::memcpy(pinned_.at(host_masked_at_), masked.data(), masked.size() * sizeof(int32_t));
    CUDA_OK(cudaMemcpyAsync(device_.at(rows_at_), pinned_.at(host_rows_at_), row_bytes, cudaMemcpyHostToDevice, stream));
    if (masked != masked_)
      CUDA_OK(cudaMemcpyAsync(device_.at(masked_at_), pinned_.at(host_masked_at_), masked.size() * sizeof(int32_t), cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaEventRecord(sent_.get(), stream));
    is_sent_ = true;
    rows_ = std::move(rows);
    masked_ = std::move(masked);
  }
  SampleParams p;
  p.logits = logits;
  p.logits_stride = vocab_size_;
  p.vocab_size = vocab_size_;
  p.n_rows = static_cast<int>(requests.size());
  p.rows = device_.at<DeviceSampleRow>(rows_at_);
  p.positions = positions;
  p.advance = advances;
  p.next_tokens = advances ? next_tokens : nullptr;
  p.results = device_.at<DeviceSampleResult>(results_at_);
  p.adjusted = device_.at<float>(adjusted_at_);
  p.counts = device_.at<uint32_t>(counts_at_);
  CUDA_OK(launch_sample(p, stream));
  CUDA_OK(cudaMemcpyAsync(pinned_.at(host_results_at_), p.results, requests.size() * sizeof(DeviceSampleResult), cudaMemcpyDeviceToHost, stream));
  return ok_status();
}

void DeviceSampler::read(std::span<SampleResult> results) const {
  const DeviceSampleResult* from = pinned_.at<DeviceSampleResult>(host_results_at_);
  for (size_t i = 0; i < results.size(); ++i) {
    SampleResult& r = results[i];
    r = {};
    r.token = from[i].token;
    if (r.token < 0 || rows_[i].n_top_logprobs < 0) continue;
    r.chosen = {r.token, std::max(from[i].logprob, kLowestLogprob)};
    for (int32_t t = 0; t < from[i].n_top; ++t) r.top.push_back({from[i].top_tokens[t], std::max(from[i].top_logprobs[t], kLowestLogprob)});
  }
}

}  // namespace tandem
