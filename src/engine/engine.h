// The step loop of a worker: schedule -> forward -> sample -> commit. Owned by the engine thread; other
// threads reach it through submit() and cancel() (bounded queue, flags) and get EngineEvents back through
// the sink, called on the engine thread. Sees token ids only: text belongs to the worker's I/O thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "model/backend.h"

namespace tandem {

enum class SequenceEnd : uint8_t { kNone, kEndToken, kMaxTokens, kContext, kPool, kDeadline, kCancelled, kFailed };

struct EngineRequest {
  uint64_t id = 0;
  std::vector<int32_t> prompt;
  struct Choice {
    uint32_t choice = 0;
    std::vector<int32_t> generated;   // replayed as a forced chunk, not sampled again
  };
  std::vector<Choice> choices;
  SamplingParams sampling;
  int n_top_logprobs = -1;
  bool prompt_logprobs = false;
  uint32_t max_tokens = 0;            // 0: prompt only
  int priority = 1;                   // 0 high, 1 normal, 2 low
  int64_t deadline_us = 0;            // 0: none
  std::vector<int32_t> end_tokens;
};

struct EngineToken {
  uint64_t id = 0;
  uint32_t choice = 0;
  uint32_t index = 0;
  int32_t token = -1;                 // -1: only an end
  bool has_logprob = false;
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
  SequenceEnd end = SequenceEnd::kNone;
  std::string error;
};
struct EnginePrompt {                 // after each chunk
  uint64_t id = 0;
  uint32_t n_done = 0, n_total = 0, n_cached = 0;
  uint32_t first_logprob = 0;         // position of logprobs[0]
  std::vector<SampleResult> logprobs; // with prompt_logprobs
};
struct EngineEvents {
  std::vector<EngineToken> tokens;
  std::vector<EnginePrompt> prompts;
};

struct EngineOptions {
  int max_batch_size = 32;
  int prefill_chunk_tokens = 256;
  int page_size = 16;
  int context_tokens = 0;
  std::vector<int> n_pages;           // per KV group
};

struct EngineCounters {               // read by other threads
  std::atomic<uint64_t> turns{0}, steps{0}, prompt_tokens{0}, generated_tokens{0}, preemptions{0};
  std::atomic<uint32_t> n_running{0}, n_waiting{0}, last_batch{0};
  std::atomic<int64_t> pages_used{0}, pages_free{0}, pages_shared{0};
  std::atomic<double> prefill_seconds{0}, decode_seconds{0}, sampling_seconds{0};
};

class Engine {
 public:
  Engine(Backend* backend, EngineOptions options, const Clock* clock,
         std::function<void(EngineEvents)> sink);
  ~Engine();
  // Thread-safe. kExhausted when the inbox is full (the supervisor bounds what it dispatches).
  Status submit(EngineRequest request);
  // Thread-safe; takes effect before the next step. choice < 0: all. kStop-like ends decided by the I/O thread
  // (stop string found) use end_silently: no further event for that choice.
  void cancel(uint64_t id, int choice, bool end_silently, SequenceEnd reason);
  // One turn: take the inbox, one step if there is work. Returns false when there was nothing to do.
  bool turn();
  void run(const std::atomic<bool>& stop);   // turns until stop; sleeps on the inbox when idle
  const EngineCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
