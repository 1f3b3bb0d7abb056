// The CPU as a Backend: weights packed for the chosen kernel table, a pool of KV pages per group, one team of
// OpenMP threads. Confined to the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "cpu/input_squares.h"
#include "cpu/packed_model.h"
#include "kernels/kernel_table.h"
#include "model/backend.h"
#include "model/weights.h"

namespace tandem {

struct CpuBackendOptions {
  const KernelTable* kernels = nullptr;
  int n_threads = 1;
  bool float_activations = false;  // the reference mode; pages then hold float32, whatever kv_type says
  int n_layers = 0;                // the first so many, forward() ending with hidden(); 0: all, and logits
  int page_size = 16;
  KvType kv_type = KvType::kF16;
  bool touch_pools_later = false;          // see Backend::touch_pages
  PackOptions pack;                        // its cache must outlive creation
  // Each step adds what its products read; as make_input_squares() of the model's configuration, outliving the backend.
  InputSquares* squares = nullptr;         // null: nothing is summed
};

// Weights of the same model from another file, to be its lean set.
struct LeanWeights {
  const ModelWeights* weights = nullptr;  // null: there are none
  PackOptions pack{};
  // Why they cannot be packed, during creation. There is no lean set then: it is no reason not to serve.
  std::function<void(const Status&)> on_refused{};
};

// What a backend will need, before it is made.
struct CpuMemory {
  int64_t weights_bytes = 0;        // packed; without those of a lean set from another file
  int64_t scratch_bytes = 0;        // at most, in steps of n_tokens tokens with n_logit_rows rows of logits, no
                                    // sequence longer than context_tokens
  std::vector<int64_t> page_bytes;  // as Backend::page_bytes
};
Result<CpuMemory> plan_cpu_memory(const ModelConfig& config, const ModelWeights& weights,
                                  const CpuBackendOptions& options, int n_tokens, int n_logit_rows,
                                  int context_tokens);

// Packs the weights (once, here). All weights may be dropped afterwards. With those of a lean set, `weights` are packed
// plain, and all layers are this backend's (options.n_layers is 0).
Result<std::unique_ptr<Backend>> create_cpu_backend(const ModelConfig& config, const ModelWeights& weights,
                                                    CpuBackendOptions options, const LeanWeights& lean = {});

}  // namespace tandem
