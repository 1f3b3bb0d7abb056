// System prompts that are computed before the worker is ready and stay in the prefix cache for its life (`warmup.prompts`): the first
// request that begins with one computes only the rest. On the engine thread, before the engine runs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "worker/prepare.h"
#include "worker/startup_text.h"

namespace tandem {

// The prompts of `text`, which lines of "---" part; blank ones are left out.
std::vector<std::string> split_warmup_prompts(const std::string& text);

// The ids with which every conversation under this system prompt begins, whatever its user says; without a chat template those of
// the plain text. kInvalidArgument: the template refuses it, or it does not fit `context_tokens`.
Result<std::vector<int32_t>> warmup_prefix(const std::string& prompt, const TextModel& model, int context_tokens);

struct WarmupResult {
  int n_prompts = 0, n_pinned_tokens = 0;
};
// Prefills each and pins its full pages. kInvalidArgument: together they need more than half of what the pool holds for one
// sequence. `take_events`: the engine's since the last call. progress(phase, fraction) after each chunk.
Result<WarmupResult> warm_up(Engine* engine, const std::vector<std::string>& prompts, const TextModel& model, int context_tokens,
                             const TakeEvents& take_events,
                             const std::function<void(const std::string& phase, float fraction)>& progress);

}  // namespace tandem
