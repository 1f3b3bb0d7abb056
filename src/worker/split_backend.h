// A model of which the first layers run on the processor and the others on a device: what the last layer of the
// processor made of a step's tokens crosses once a step. A page of a KV group has the same number on both sides, each
// holding the K/V of its own layers. Confined to the engine thread.
#pragma once

#include <memory>

#include "model/backend.h"

namespace tandem {

// config: of the whole model. front: its first layers (CpuBackendOptions::n_layers); back: the others
// (GpuOptions::first_layer). Swapped pages are only copied, on both sides. A lean step is lean on either side that has a lean
// set, which one can lack where not all of a model is Q8_0.
std::unique_ptr<Backend> create_split_backend(const ModelConfig& config, std::unique_ptr<Backend> front, std::unique_ptr<Backend> back);

}  // namespace tandem
