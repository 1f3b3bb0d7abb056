// The CPU as a Backend: weights packed for the chosen kernel table, a pool of KV pages per group, one team of
// OpenMP threads. Confined to the engine thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "cpu/pack_cache.h"
#include "kernels/kernel_table.h"
#include "model/backend.h"
#include "model/weights.h"

namespace tandem {

struct CpuBackendOptions {
  const KernelTable* kernels = nullptr;
  int n_threads = 1;
  bool float_activations = false;  // the reference mode; pages then hold float32, whatever kv_type says
  int page_size = 16;
  KvType kv_type = KvType::kF16;
  bool touch_pools_later = false;          // see Backend::touch_pages
  PackCache* pack_cache = nullptr;         // of packed weights; must outlive creation
  std::function<void(float)> on_progress;  // repacking, 0..1
};

// Packs the weights (once, here). `weights` may be dropped afterwards.
Result<std::unique_ptr<Backend>> create_cpu_backend(const ModelConfig& config, const ModelWeights& weights,
                                                    CpuBackendOptions options);

}  // namespace tandem
