// One step of the model as plain data: what Scheduler::schedule() decides and Backend::forward() runs.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

using PageId = int32_t;  // index into the pool of one KV group; -1: left the window

// Which of the model's weights a step reads: all of them, or, where the backend has it, the smaller set
// that gives up some exactness for speed.
enum class WeightSet : uint8_t { kFull, kLean };

// Tokens of one sequence in one step: a chunk of its prompt, or one decode token.
struct StepItem {
  int first_pos = 0;              // position of the first token
  int first_token = 0;            // index into StepBatch::tokens
  int n_tokens = 0;
  // Per KV group: pages of positions 0.. in order; pages for all of this step's positions are there.
  std::vector<const PageId*> page_tables;
  bool is_decode = false;         // for accounting only: the numbers do not depend on it
};

struct StepBatch {
  std::vector<int32_t> tokens;     // all items' tokens one after another; size M
  std::vector<StepItem> items;
  std::vector<int> logit_rows;     // ascending indices into tokens whose logits are needed
  WeightSet weights = WeightSet::kFull;
  // For a backend whose layers are not the model's first (stage.h), else null: what the layer before made of the
  // tokens, [M][hidden_dim].
  const float* hidden = nullptr;
  void clear() { tokens.clear(), items.clear(), logit_rows.clear(), hidden = nullptr, weights = WeightSet::kFull; }
};

}  // namespace tandem
