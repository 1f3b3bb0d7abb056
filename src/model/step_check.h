// What every backend asks of a step before it computes anything: one list of ways in which a step can be wrong. Pure.
#pragma once

#include <climits>
#include <functional>

#include "base/status.h"
#include "model/model_config.h"
#include "model/step_batch.h"

namespace tandem {

// What a backend can take.
struct StepLimits {
  int page_size = 16;
  int context_tokens = INT_MAX;     // positions of a sequence
  bool has_lean_set = false;
  bool takes_hidden = false;        // its layers are not the model's first (stage.h)
  std::function<int(int)> n_pages;  // of a KV group: those that attention reads
};

// kInvalidArgument names what is wrong, found and allowed.
Status check_step(const StepBatch& batch, const ModelConfig& config, const StepLimits& limits);

}  // namespace tandem
