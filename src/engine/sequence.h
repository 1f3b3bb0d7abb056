// What the scheduler runs: a sequence is one choice of one request. Changed by Scheduler::add, preempt,
// cancel and commit alone. Confined to the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/page_table.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"

namespace tandem {

struct RequestState;

struct Sequence {
  Sequence(RequestState* owner, PagePool* pool, const std::vector<int>* windows, int page_size)
      : request(owner), pages(pool, windows, page_size) {}

  enum class State : uint8_t {
    kWaiting,   // for a place in the batch; holds no pages, or some of the swap tier if swapped out
    kRunning,   // in the batch: its prompt is being computed, or it decodes
    kForking,   // will fork from the request's leader when that has computed the prompt; holds no pages
    kEnded,
  };
  RequestState* request;
  State state = State::kWaiting;
  uint32_t choice = 0;
  std::vector<int32_t> generated;
  PageTable pages;
  int n_computed = 0;             // positions [0, n_computed) have K/V in `pages`
  WeightSpans weights;            // of positions computed here or elsewhere, at some time
  PrefixCache::Chain published;   // of [0, n_computed): its full blocks, in the prefix cache or adopted from it
  bool is_imported = false;       // of a request with a loan: has the prompt's K/V
  int64_t waiting_since_us = 0;   // while kWaiting
  int64_t waited_us = 0;          // earlier waits together
  uint64_t batch = 0;             // number of the batch it belongs to, unless batching is continuous
  // Of the schedule() in progress:
  int priority_class = 0;         // priority after ageing
  int planned_tokens = 0;         // in this step; 0: none
  uint64_t preempted_in_step = 0; // the last step that preempted it

  bool is_swapped() const { return state == State::kWaiting && n_computed > 0; }
  int n_tokens() const;           // prompt and generated
  int n_wanted() const;           // tokens whose K/V are computed here: all of them, or only the prompt
  int32_t token_at(int pos) const;
  // For new positions, `next`.
  PrefixCache::Tokens tokens(WeightSet next) const;
  // One token lacks its K/V, and it is a generated one.
  bool is_decoding() const;
};

struct RequestState {
  EngineRequest request;
  uint64_t arrival = 0;                              // running number: age, without ties
  std::vector<std::unique_ptr<Sequence>> sequences;  // by choice
  Sequence* leader = nullptr;                        // computes the prompt for those that fork
  std::vector<Sequence*> forking;
  WeightSpans prompt_weights;                        // of the prompt, whichever choice computed it
  int n_unfinished = 0;
  int n_prompt_reported = 0;                         // EnginePrompt::n_done so far, or n_cached
  int n_cached = 0;                                  // prompt tokens that this request never computed
  bool has_computed = false;                         // some of its prompt
  std::unique_ptr<PageTable> lent;                   // of a request that hands off, once the prompt is computed
  int n_lent_blocks = 0;                             // of those lent as they filled
  bool has_told_import = false;
  int n_prompt_logprobs = 0;                         // of positions 1..n: known or reported
};

inline int Sequence::n_tokens() const {
  return static_cast<int>(request->request.prompt.size() + generated.size());
}
inline int Sequence::n_wanted() const {
  return request->request.hands_off ? static_cast<int>(request->request.prompt.size()) : n_tokens();
}
inline int32_t Sequence::token_at(int pos) const {
  const std::vector<int32_t>& prompt = request->request.prompt;
  int n_prompt = static_cast<int>(prompt.size());
  return pos < n_prompt ? prompt[pos] : generated[pos - n_prompt];
}
inline PrefixCache::Tokens Sequence::tokens(WeightSet next) const {
  return {request->request.prompt, generated, &weights, next};
}
inline bool Sequence::is_decoding() const {
  return !generated.empty() && !request->request.hands_off && n_computed == n_tokens() - 1;
}

}  // namespace tandem
