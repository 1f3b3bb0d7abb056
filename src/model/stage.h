// A run of a model's layers as a model of its own, so that two backends can share one: the first takes tokens and ends
// with activations, the last takes those (StepBatch::hidden) and ends with logits. KV groups keep their numbers, and
// those without a layer here have pages of no bytes, so that both read the same page tables.
#pragma once

#include "base/status.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace tandem {

// Layers [first, last) of `config`, renumbered from 0. 0 <= first < last <= n_layers (caller checks).
ModelConfig stage_config(const ModelConfig& config, int first, int last);
// Views into the same file. The first stage has the token embedding, the last one output and output norm.
ModelWeights stage_weights(const ModelWeights& weights, int first, int last);

}  // namespace tandem
