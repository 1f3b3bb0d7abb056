// Sampling from one row of logits. Pure: the result depends on the logits, the parameters and the
// counter-based generator's key (seed, choice, position) only, so that a resumed or batched sequence
// draws what an uninterrupted, lonely one would (Philox 4x32-10, Salmon et al. 2011).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tandem {

struct SamplingParams {
  float temperature = 1.0f;          // 0: greedy, lowest id wins a tie
  float top_p = 1.0f;                // (0, 1]
  float min_p = 0.0f;                // [0, 1]
  int top_k = 0;                     // 0: off
  float repetition_penalty = 1.0f;   // > 0; over prompt and generated tokens (Keskar et al. 2019)
  float presence_penalty = 0.0f;     // over generated tokens, as OpenAI defines it
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // token id, added before everything else
  bool ignore_eos = false;           // end-of-generation tokens are never drawn
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // natural log, of the model's distribution before any sampling parameter
};

struct SampleRequest {
  int logit_row = 0;                         // index into StepBatch::logit_rows
  const SamplingParams* params = nullptr;
  uint32_t choice = 0;
  uint32_t position = 0;                     // index of the token to be drawn: prompt + generated so far
  std::span<const int32_t> prompt;           // for the penalties
  std::span<const int32_t> generated;
  std::span<const int32_t> end_tokens;       // masked when ignore_eos
  int n_top_logprobs = -1;                   // -1: none; else the chosen token's and so many likeliest
  int32_t forced_token = -1;                 // >= 0: replay; no draw, only log-probabilities
};

// The floor of every reported log-probability (a logit of -inf has none that JSON could carry). The value
// is OpenAI's own sign for "very unlikely".
constexpr float kLowestLogprob = -9999.0f;

struct SampleResult {
  // -1: the row holds a NaN or +inf, or every token is masked: nothing can be drawn, and the engine ends
  // the sequence as failed. chosen and top are then empty.
  int32_t token = 0;
  TokenLogprob chosen;                       // valid if n_top_logprobs >= 0
  std::vector<TokenLogprob> top;             // descending; ties by id
};

// One row. `scratch` is reused between calls of one thread. log_sum_exp: see KernelTable; passed in so that
// every backend's log-probabilities use the same order of sums as its kernels.
struct SamplerScratch {
  std::vector<float> logits;                            // the row after bias and penalties
  std::vector<std::pair<float, int32_t>> candidates;
  std::vector<int32_t> counts;                          // per token id; all zero between calls
};
// The order is: logit_bias, repetition penalty, presence and frequency penalty, end tokens masked,
// temperature, top_k, min_p, top_p, draw. The draw walks the tokens in descending order (ties by id) and
// takes the first whose cumulative probability exceeds philox_uniform(). Ids outside the row are ignored.
void sample_row(std::span<const float> logits, const SampleRequest& request,
                double (*log_sum_exp)(const float*, int64_t), SamplerScratch* scratch,
                SampleResult* result);

// Uniform in [0, 1) with 24 bits, from Philox4x32-10 with key = seed and counter = (position, choice, 0, 0).
float philox_uniform(uint64_t seed, uint32_t choice, uint32_t position);

}  // namespace tandem
