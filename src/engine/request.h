// What goes into the engine and what comes out, as plain data: token ids only, no text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/sampler.h"

namespace tandem {

enum class SequenceEnd : uint8_t { kNone, kEndToken, kMaxTokens, kContext, kPool, kDeadline, kCancelled, kFailed };

struct EngineRequest {
  uint64_t id = 0;
  std::vector<int32_t> prompt;        // not empty
  struct Choice {
    uint32_t choice = 0;
    std::vector<int32_t> generated;   // replayed as a forced chunk, not sampled again
  };
  std::vector<Choice> choices;
  SamplingParams sampling;
  int n_top_logprobs = -1;            // -1: no log-probabilities
  bool prompt_logprobs = false;       // also of the prompt's tokens 1.., given what precedes them
  uint32_t n_prompt_logprobs_known = 0;  // resume: those of positions 1..n are not computed again
  uint32_t max_tokens = 0;            // 0: prompt only
  int priority = 1;                   // 0 high, 1 normal, 2 low
  int64_t waited_us = 0;              // before it came here: counts for ageing
  int64_t deadline_us = 0;            // 0: none
  std::vector<int32_t> end_tokens;
};

struct EngineToken {
  uint64_t id = 0;
  uint32_t choice = 0;
  uint32_t index = 0;                 // among the choice's generated tokens
  int32_t token = -1;                 // -1: only an end
  bool has_logprob = false;
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
  SequenceEnd end = SequenceEnd::kNone;
  std::string error;                  // with kFailed
};
struct EnginePrompt {                 // after each chunk; n_done only grows
  uint64_t id = 0;
  uint32_t n_done = 0, n_total = 0, n_cached = 0;
  uint32_t first_logprob = 0;         // prompt position of logprobs[0], at least 1
  std::vector<SampleResult> logprobs; // with prompt_logprobs
};
struct EngineEvents {
  std::vector<EngineToken> tokens;
  std::vector<EnginePrompt> prompts;
  bool empty() const { return tokens.empty() && prompts.empty(); }
};

}  // namespace tandem
