// Draws tokens from logits on the device, in the order of model/sampler.h: logit_bias, repetition penalty,
// presence and frequency penalty, masked ids, temperature, top_k, min_p, top_p, draw by Philox (seed, choice,
// position). Only ids and asked-for log-probabilities cross the bus.
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

namespace tandem {

constexpr int kDeviceTopLogprobs = 20;

// One row's parameters, in device memory; they change when a sequence joins or leaves.
struct DeviceSampleRow {
  uint64_t seed = 0;
  uint32_t choice = 0;
  float temperature = 0;  // 0: greedy, the lowest id wins a tie
  float top_p = 1.0f, min_p = 0.0f;
  int32_t top_k = 0;
  float repetition_penalty = 1.0f, presence_penalty = 0.0f, frequency_penalty = 0.0f;
  int32_t n_prompt = 0;           // the first so many tokens of the history are the prompt
  int32_t n_bias = 0;             // entries of bias_tokens and bias_values
  int32_t n_masked = 0;           // entries of masked_tokens: never drawn
  int32_t n_top_logprobs = -1;    // -1: none; else the chosen token's and so many likeliest (at most 20)
  int32_t forced_token = -1;      // >= 0: no draw
  const int32_t* bias_tokens = nullptr;  // device pointers
  const float* bias_values = nullptr;
  const int32_t* masked_tokens = nullptr;
  // All tokens so far, [history_capacity]; needed with a penalty, else may be null. The drawn token is stored at
  // the position it was drawn for if it fits.
  int32_t* history = nullptr;
  int32_t history_capacity = 0;
};

struct DeviceSampleResult {
  int32_t token;  // -1: the row holds a NaN or +inf, or every token is masked
  float logprob;  // of the token, of the model's own distribution
  int32_t n_top;
  int32_t top_tokens[kDeviceTopLogprobs];  // descending; ties by id
  float top_logprobs[kDeviceTopLogprobs];
};

struct SampleParams {
  const float* logits = nullptr;  // device [M][logits_stride]
  int64_t logits_stride = 0;
  int vocab_size = 0;
  int n_rows = 0;                         // M
  const DeviceSampleRow* rows = nullptr;  // device [M]
  // Device [M]: position of the token that gave the logits; the drawn one's is one more. Negative: padding, the
  // row is left alone. With `advance` each is raised by one after the draw.
  int32_t* positions = nullptr;
  bool advance = false;
  int32_t* next_tokens = nullptr;         // device [M]: the drawn tokens again, as launch_embed reads them; or null
  DeviceSampleResult* results = nullptr;  // device (or mapped host) [M]
  float* adjusted = nullptr;   // device [M][vocab_size]: rows after bias and penalties
  uint32_t* counts = nullptr;  // device [M][vocab_size], zero before the first launch ever and after each
};

// cudaErrorInvalidValue: a pointer is missing or a size is not positive.
cudaError_t launch_sample(const SampleParams& params, cudaStream_t stream);

}  // namespace tandem
