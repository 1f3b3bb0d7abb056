// The device as the worker sees it: found, described, made into a Backend. No CUDA type: the tree without CUDA has
// gpu_absent.cc in place of the rest of this room, with the same symbols.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/kernel_table.h"
#include "model/backend.h"
#include "model/weights.h"

namespace tandem {

constexpr int kMinDriver = 580;  // of the CUDA 13 runtime

struct GpuFacts {
  int index = 0;
  std::string name;         // "NVIDIA GeForce RTX 4060"
  std::string driver;       // "580.95.05", or CUDA's number of it where the management library is not there
  int sm = 0;               // 89: compute capability 8.9
  int64_t total_bytes = 0, free_bytes = 0;
  bool is_integrated = false;  // one memory with the processor
};

// Opens driver and device. Before the sandbox: afterwards nothing new can be opened. kUnavailable says what is
// missing: the driver, a driver that is new enough, a device, a device that CUDA_VISIBLE_DEVICES shows.
Result<GpuFacts> open_gpu(int index);

struct GpuOptions {
  int64_t memory_budget_bytes = 0;  // for weights, workspace and K/V; 0: what is free, less a reserve
  int page_size = 16;
  KvType kv_type = KvType::kF16;    // kF16 or kQ8_0
  int max_batch_size = 32;          // sequences of a step
  int context_tokens = 0;
  int first_layer = 0;              // those before are another backend's: steps begin with StepBatch::hidden
  int n_threads = 1;                // of the host, for packing weights
  bool has_lean_set = true;         // Q8_0 matrices, where they are most of the model, are nested (kernels/tile_layout.h)
  bool float_activations = false;   // the reference mode
  bool uses_graphs = true;
  bool measures_paths = true;       // at warm-up: which kernels many rows take
  bool runs_ahead = true;           // next step launched before this one's tokens are read
  std::function<void(float)> on_progress;
};

// What a model takes of device memory, before any of it is taken.
struct GpuMemory {
  int64_t budget_bytes = 0;         // as decided from options and what is free
  int64_t weights_bytes = 0, workspace_bytes = 0;
  std::vector<int64_t> page_bytes;  // per KV group
  int64_t kv_bytes() const { return budget_bytes - weights_bytes - workspace_bytes; }  // at most
};
// kUnimplemented names a tensor that the kernels do not serve; kExhausted a model that is larger than the budget, with
// the arithmetic.
Result<GpuMemory> plan_gpu_memory(const ModelConfig& config, const ModelWeights& weights, const GpuFacts& gpu,
                                  const GpuOptions& options);
// Uploads the weights. `weights` may be dropped afterwards.
Result<std::unique_ptr<Backend>> create_gpu_backend(const ModelConfig& config, const ModelWeights& weights,
                                                    const GpuFacts& gpu, GpuOptions options);

}  // namespace tandem
