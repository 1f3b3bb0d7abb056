// How long steps take on a machine, from what `tandem bench --json` measured there.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/step_cost.h"

namespace tandem {

struct LatencyModel {
  StepCost cost;
  double overhead_us = 0;   // a step beyond the model's own time: scheduling, messages
  double noise = 0;         // standard deviation of a step's time, as a share
  double step_us(const StepShape& shape) const { return cost.predict_us(shape) + overhead_us; }
};

// What a run of bench says of steps: a decode row and a prefill row per batch. `chunk`: its --chunk.
Result<std::vector<StepCost::Row>> read_bench(const std::string& json, int chunk);
// Of several runs (other prompts, batches, chunks) together. `files` are `path` or `path:chunk`.
Result<LatencyModel> fit_latency(const std::vector<std::string>& files);
// Weights written by print_weights(): five numbers, separated by commas.
Result<LatencyModel> parse_weights(const std::string& text);
std::string print_weights(const StepCost& cost);
// A small model on two cores, measured once: a default that needs no machine.
LatencyModel example_latency();

}  // namespace tandem
