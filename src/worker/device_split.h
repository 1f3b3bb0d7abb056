// Which layers of a model a device holds: as many of the last ones as fit its budget. Pure arithmetic.
#pragma once

#include "base/status.h"
#include "gpu/gpu_backend.h"

namespace tandem {

struct DeviceSplit {
  int first_layer = 0;     // of the device; those before stay on the processor
  GpuMemory memory;        // of the device
  std::string why;         // why not all of them, with the arithmetic; empty: all, or so configured
};
struct DeviceSplitInput {
  const ModelConfig& config;
  const ModelWeights& weights;
  const GpuFacts& gpu;
  const GpuOptions& options;      // first_layer is not read
  int n_layers = 0;               // gpu.layers: 0: as many as fit
  int64_t kv_pool_bytes = 0;      // cache.kv_pool_bytes, of all layers; 0: room for one sequence of least_tokens
  int least_tokens = 0;
};
// kExhausted: not even one layer fits, or not as many as wanted. kUnimplemented as plan_gpu_memory(), for any layer.
Result<DeviceSplit> choose_device_layers(const DeviceSplitInput& input);

// Whether the card holds what its workers may take of it together: weights too are each worker's own. kExhausted has the
// arithmetic. budget_bytes: gpu.memory_budget_bytes, of each; 0 (one worker alone): what is free.
Status check_card(int64_t n_workers, int64_t budget_bytes, const GpuFacts& gpu);

}  // namespace tandem
