// What goes into the engine and what comes out, as plain data: token ids only, no text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/sampler.h"
#include "engine/weight_spans.h"
#include "model/step_batch.h"

namespace tandem {

enum class SequenceEnd : uint8_t { kNone, kEndToken, kMaxTokens, kContext, kPool, kDeadline, kCancelled, kFailed };

// A page of another worker's pool; `serial` as in PageLedger.
struct RemotePage {
  PageId page = -1;     // -1: left the window
  uint32_t serial = 0;
};
// K/V of a prompt's positions [first_block * page size, n_tokens), lent by a prefill worker: per KV group one page
// a block. A loan that is whole begins at block 0, ends with the prompt and lasts until it is released.
struct EngineLoan {
  uint64_t id = 0;          // of the request
  uint32_t source = 0;      // which pool, and
  uint64_t generation = 0;  // which life of its owner
  uint32_t first_block = 0, n_tokens = 0;
  bool is_whole = false;
  std::vector<uint32_t> weight_borders{};  // of its positions, as in WeightSpans
  std::vector<std::vector<RemotePage>> groups;
};

struct EngineRequest {
  uint64_t id = 0;
  std::vector<int32_t> prompt;        // not empty
  struct Choice {
    uint32_t choice = 0;
    std::vector<int32_t> generated;   // replayed as a forced chunk, not sampled again
    // With tokens: which sets computed all positions but the last (WeightSpans); replayed with these.
    std::vector<uint32_t> weight_borders{};
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
  bool waits_for_company = true;      // with static batching: else its batch begins at once
  // Only the prompt is computed here, and first tokens drawn; then its pages are lent and the request is no longer
  // ours, without a word but the loan.
  bool hands_off = false;
  // Which of several places computes the prompt, where their bits differ: those of one are no cached prefix for the other.
  uint8_t place = 0;
  // The prompt is not computed but copied from this (whole) loan; each choice has a token already.
  std::optional<EngineLoan> loan;
};

struct EngineToken {
  uint64_t id = 0;
  uint32_t choice = 0;
  uint32_t index = 0;                 // among the choice's generated tokens
  int32_t token = -1;                 // -1: only an end
  bool has_logprob = false;
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
  WeightSet weights = WeightSet::kFull;  // that computed the position it was drawn from
  SequenceEnd end = SequenceEnd::kNone;
  std::string error;                  // with kFailed
};
struct EnginePrompt {                 // after each chunk; n_done only grows
  uint64_t id = 0;
  uint32_t n_done = 0, n_total = 0, n_cached = 0;
  uint32_t first_logprob = 0;         // prompt position of logprobs[0], at least 1
  std::vector<SampleResult> logprobs; // with prompt_logprobs
  std::vector<uint32_t> weight_borders{};  // of [0, n_done), as in WeightSpans
};
struct EngineReturn {                 // given back with all its choices, its pages with it
  uint64_t id = 0;
  bool is_preempted = false;          // for want of pages; else its loan was no good
  std::string reason;
};
// In the order in which they are to be told.
struct EngineEvents {
  std::vector<EngineToken> tokens;
  std::vector<EnginePrompt> prompts;
  std::vector<EngineLoan> loans;
  std::vector<uint64_t> imported;     // requests whose loan was copied
  std::vector<EngineReturn> returns;
  bool empty() const {
    return tokens.empty() && prompts.empty() && loans.empty() && imported.empty() && returns.empty();
  }
};

}  // namespace tandem
