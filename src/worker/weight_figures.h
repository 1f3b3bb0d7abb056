// What a model's two sets of weights are worth here, and why the lean one does not serve where it does not.
#pragma once

#include <functional>
#include <string>

#include "base/config.h"
#include "cpu/pack_cache.h"
#include "engine/engine.h"
#include "worker/model_load.h"

namespace tandem {

// Times steps of one sequence with either set in turn; the fastest of each counts, as anything that disturbs only slows.
// Then the perplexity of a short English text of our own: it tells the sets apart, not how good a model is. Zeros: the
// context is too short for it. `known`: what is stored of these sets, perhaps by a worker of another number of threads,
// which makes other times but the same perplexities. kDataLoss: a set computes no numbers; the engine is left with either.
// At start-up, on the engine thread, as run_canary().
Result<SetFigures> measure_sets(Engine* engine, const LoadedModel& model, const SetFigures& known, const TakeEvents& take_events);

// "": the lean set serves.
std::string no_lean_reason(const Config& settings, const LoadedModel& model, const SetFigures& figures);

}  // namespace tandem
