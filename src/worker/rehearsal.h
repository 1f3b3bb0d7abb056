// Steps as they will come, before anybody waits for them: of one sequence, two, four …, with the prompts of those that join beside
// those that run, with each set of weights. A device captures its graphs in them, caches fill, and the scheduler learns what
// a step costs. On the engine thread, before the engine runs.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "worker/startup_text.h"

namespace tandem {

struct RehearsalPlan {
  int most_sequences = 1;   // of a step
  int n_sets = 1;           // 2: the lean one too
  int vocab_size = 0;
  int64_t most_us = 0;      // nothing is begun that would end later, judging by what came before
  int64_t canary_us = 0;    // what the canary took: more than one sequence will
};
// How many sequences the largest step had: less than asked for where time or pages were short. kDataLoss: the model fails. The
// engine is left idle, with the full set.
Result<int> rehearse(Engine* engine, const RehearsalPlan& plan, const TakeEvents& take_events);

}  // namespace tandem
