#include "gpu/device_sampler.h"

#include <algorithm>
#include <cstring>

namespace tandem {

namespace {

bool has_penalty(const SamplingParams& p) {
  return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

}  // namespace

void DeviceSampler::plan(int max_rows, int vocab_size, int context_tokens) {
  static_assert(sizeof(DeviceBias::tokens) / sizeof(int32_t) == kMostBiases);
  max_rows_ = max_rows;
  vocab_size_ = vocab_size;
  history_capacity_ = std::min(context_tokens + 1, kMostHistory);
  const size_t M = static_cast<size_t>(max_rows), V = static_cast<size_t>(vocab_size), H = static_cast<size_t>(history_capacity_);
  rows_at_ = device_.add(M * sizeof(DeviceSampleRow));
  masked_at_ = device_.add(M * kMostMasked * sizeof(int32_t));
  bias_at_ = device_.add(M * sizeof(DeviceBias));
  history_at_ = device_.add(M * H * sizeof(int32_t));
  results_at_ = device_.add(M * sizeof(DeviceSampleResult));
  adjusted_at_ = device_.add(M * V * sizeof(float));
  counts_at_ = device_.add(M * V * sizeof(uint32_t));
  host_rows_at_ = pinned_.add(M * sizeof(DeviceSampleRow));
  host_masked_at_ = pinned_.add(M * kMostMasked * sizeof(int32_t));
  host_bias_at_ = pinned_.add(M * sizeof(DeviceBias));
  host_history_at_ = pinned_.add(M * H * sizeof(int32_t));
  host_results_at_ = pinned_.add(M * sizeof(DeviceSampleResult));
}

Status DeviceSampler::allocate(cudaStream_t stream) {
  CHECK_OK(device_.allocate());
  CHECK_OK(pinned_.allocate());
  CUDA_OK(cudaEventCreateWithFlags(sent_.put(), cudaEventDisableTiming));
  CUDA_OK(cudaMemsetAsync(device_.at(counts_at_), 0, static_cast<size_t>(max_rows_) * static_cast<size_t>(vocab_size_) * sizeof(uint32_t), stream));
  rows_.clear();
  masked_.assign(static_cast<size_t>(max_rows_) * kMostMasked, -1);
  biases_.assign(static_cast<size_t>(max_rows_), DeviceBias{});
  histories_.assign(static_cast<size_t>(max_rows_), {});
  return ok_status();
}

bool DeviceSampler::serves(std::span<const SampleRequest> requests, int n_rows) const {
  if (static_cast<int>(requests.size()) != n_rows || n_rows > max_rows_) return false;
  for (size_t i = 0; i < requests.size(); ++i) {
    const SampleRequest& r = requests[i];
    const SamplingParams& p = *r.params;
    if (r.logit_row != static_cast<int>(i) || p.logit_bias.size() > kMostBiases || r.n_top_logprobs > kDeviceTopLogprobs ||
        (p.ignore_eos && r.end_tokens.size() > kMostMasked))
      return false;
    const size_t n_known = r.prompt.size() + r.generated.size();
    if (has_penalty(p) && (n_known != r.position || n_known >= static_cast<size_t>(history_capacity_))) return false;
  }
  return true;
}

// What a row with a penalty has seen and the device does not have: all of it where another sequence takes the row, else
// nothing, as each draw writes its token there.
Status DeviceSampler::send_histories(std::span<const SampleRequest> requests, cudaStream_t stream) {
  bool has_waited = false;
  for (size_t i = 0; i < requests.size(); ++i) {
    const SampleRequest& r = requests[i];
    if (!has_penalty(*r.params)) continue;
    std::vector<int32_t>& known = histories_[i];
    const size_t n_prompt = r.prompt.size(), n = n_prompt + r.generated.size();
    const auto token = [&](size_t t) { return t < n_prompt ? r.prompt[t] : r.generated[t - n_prompt]; };
    size_t first = 0;
    while (first < n && first < known.size() && known[first] == token(first)) ++first;
    known.resize(first);
    if (first == n) continue;
    if (is_sent_ && !has_waited) CUDA_OK(cudaEventSynchronize(sent_.get()));  // long ago
    has_waited = true;
    int32_t* staged = pinned_.at<int32_t>(host_history_at_) + i * static_cast<size_t>(history_capacity_) + first;
    for (size_t t = first; t < n; ++t) known.push_back(staged[t - first] = token(t));
    CUDA_OK(cudaMemcpyAsync(device_.at<int32_t>(history_at_) + i * static_cast<size_t>(history_capacity_) + first, staged,
                            (n - first) * sizeof(int32_t), cudaMemcpyHostToDevice, stream));
  }
  if (!has_waited) return ok_status();
  CUDA_OK(cudaEventRecord(sent_.get(), stream));
  is_sent_ = true;
  return ok_status();
}

Status DeviceSampler::enqueue(std::span<const SampleRequest> requests, const float* logits, int32_t* positions, int32_t* next_tokens,
                              bool advances, cudaStream_t stream) {
  std::vector<DeviceSampleRow> rows(requests.size());
  std::vector<int32_t> masked = masked_;
  const bool has_bias = std::any_of(requests.begin(), requests.end(), [](const SampleRequest& r) { return !r.params->logit_bias.empty(); });
  std::vector<DeviceBias> biases = has_bias ? biases_ : std::vector<DeviceBias>();  // large, and rare
  CHECK_OK(send_histories(requests, stream));
  for (size_t i = 0; i < requests.size(); ++i) {
    const SampleRequest& r = requests[i];
    DeviceSampleRow& row = rows[i];
    row.seed = r.params->seed;
    row.choice = r.choice;
    row.temperature = r.params->temperature;
    row.top_p = r.params->top_p, row.min_p = r.params->min_p, row.top_k = r.params->top_k;
    row.n_top_logprobs = r.n_top_logprobs;
    row.forced_token = r.forced_token;
    if (has_penalty(*r.params)) {
      row.repetition_penalty = r.params->repetition_penalty;
      row.presence_penalty = r.params->presence_penalty, row.frequency_penalty = r.params->frequency_penalty;
      row.n_prompt = static_cast<int32_t>(r.prompt.size());
      row.history = device_.at<int32_t>(history_at_) + i * static_cast<size_t>(history_capacity_);
      row.history_capacity = history_capacity_;
    }
    if (!r.params->logit_bias.empty()) {
      const auto& bias = r.params->logit_bias;
      row.n_bias = static_cast<int32_t>(bias.size());
      auto* on_device = device_.at<DeviceBias>(bias_at_) + i;
      row.bias_tokens = on_device->tokens, row.bias_values = on_device->values;
      for (size_t b = 0; b < bias.size(); ++b) biases[i].tokens[b] = bias[b].first, biases[i].values[b] = bias[b].second;
    }
    if (r.params->ignore_eos && !r.end_tokens.empty()) {
      row.n_masked = static_cast<int32_t>(r.end_tokens.size());
      row.masked_tokens = device_.at<int32_t>(masked_at_) + i * kMostMasked;
      std::copy(r.end_tokens.begin(), r.end_tokens.end(), masked.begin() + static_cast<std::ptrdiff_t>(i * kMostMasked));
    }
  }
  const size_t row_bytes = rows.size() * sizeof(DeviceSampleRow);
  if (rows_.size() < rows.size() || masked != masked_ || (has_bias && biases != biases_) || std::memcmp(rows.data(), rows_.data(), row_bytes) != 0) {
    if (is_sent_) CUDA_OK(cudaEventSynchronize(sent_.get()));  // long ago
    std::memcpy(pinned_.at(host_rows_at_), rows.data(), row_bytes);
    std::memcpy(pinned_.at(host_masked_at_), masked.data(), masked.size() * sizeof(int32_t));
    CUDA_OK(cudaMemcpyAsync(device_.at(rows_at_), pinned_.at(host_rows_at_), row_bytes, cudaMemcpyHostToDevice, stream));
    if (masked != masked_)
      CUDA_OK(cudaMemcpyAsync(device_.at(masked_at_), pinned_.at(host_masked_at_), masked.size() * sizeof(int32_t), cudaMemcpyHostToDevice, stream));
    if (has_bias && biases != biases_) {
      std::memcpy(pinned_.at(host_bias_at_), biases.data(), biases.size() * sizeof(DeviceBias));
      CUDA_OK(cudaMemcpyAsync(device_.at(bias_at_), pinned_.at(host_bias_at_), biases.size() * sizeof(DeviceBias), cudaMemcpyHostToDevice, stream));
    }
    CUDA_OK(cudaEventRecord(sent_.get(), stream));
    is_sent_ = true;
    rows_ = std::move(rows);
    masked_ = std::move(masked);
    if (has_bias) biases_ = std::move(biases);
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

void DeviceSampler::read(std::span<SampleResult> results) {
  const DeviceSampleResult* from = pinned_.at<DeviceSampleResult>(host_results_at_);
  for (size_t i = 0; i < results.size(); ++i) {
    SampleResult& r = results[i];
    r = {};
    r.token = from[i].token;
    if (rows_[i].history != nullptr && r.token >= 0) histories_[i].push_back(r.token);  // where the draw put it
    if (r.token < 0 || rows_[i].n_top_logprobs < 0) continue;
    r.chosen = {r.token, std::max(from[i].logprob, kLowestLogprob)};
    for (int32_t t = 0; t < from[i].n_top; ++t) r.top.push_back({from[i].top_tokens[t], std::max(from[i].top_logprobs[t], kLowestLogprob)});
  }
}

}  // namespace tandem
