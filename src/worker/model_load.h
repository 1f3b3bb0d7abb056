// From open descriptors to a model that can serve: file -> configuration, weights, vocabulary, template,
// backend, KV pool. Runs on the engine thread, which owns the backend from then on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "cpu/cpu_backend.h"
#include "cpu/pack_cache.h"
#include "engine/engine.h"
#include "gpu/gpu_backend.h"
#include "gguf/gguf_reader.h"
#include "ipc/messages.h"
#include "model/backend.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "worker/host_facts.h"
#include "worker/host_pool.h"
#include "worker/lean_model.h"
#include "worker/lent_pools.h"
#include "worker/prepare.h"
#include "worker/startup_text.h"

namespace tandem {

struct LoadedModel {
  std::unique_ptr<GgufModel> file;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // null: see info.chat_template_error
  // These may have something to store, from the backend's memory. lean_cache: of the file that the lean set is from, or null.
  std::unique_ptr<PackCache> pack_cache, lean_cache;
  std::string no_lean_file;                     // why the file of weights.lean does not serve; or empty
  std::unique_ptr<HostPool> host_pool;          // where the backend's pages are, or null; outlives both below
  std::unique_ptr<LentPools> lent_pools;        // of a decode worker, else null
  std::unique_ptr<Backend> backend;             // its pages are reserved, not touched
  int n_threads = 0;                            // of the backend on the processor
  GpuMemory gpu_memory;                         // of the device, where the backend is there
  std::vector<int64_t> front_page_bytes;        // per KV group: of the layers that the processor computes for a device; or empty
  EngineOptions engine_options;
  ipc::ModelInfo info;
  TextModel text() const { return {tokenizer.get(), chat_template.get(), info.chat_template_error}; }
};

// The memfd for the KV pool; none (fd -1): the pool dies with this process.
struct HostPoolAccess {
  int fd = -1;
  uint64_t generation = 0;
  std::vector<int> lent_fds;                   // of a decode worker: the prefill workers' pools
  std::function<Status(int64_t bytes)> grow;  // waits until the memfd has this size
};
using LoadProgress = std::function<void(const std::string& phase, float fraction)>;

// gpu: where the model runs, as open_gpu() found it; null: on the processor.
// other_bytes: PSS of the rest of the process tree. Everything wrong with the model's files or with the configuration is
// an error with a message for the operator; a model without a usable chat template, or with a file for its lean set that
// cannot serve, loads all the same.
Result<std::unique_ptr<LoadedModel>> load_model(std::vector<GgufFile> files, PackCache::Files cache, LeanSource lean,
                                                const HostPoolAccess& pool,
                                                const Config& config, const HostFacts& host, const GpuFacts* gpu,
                                                int64_t other_bytes, const LoadProgress& progress);

// What these settings say of the CPU backend, before caches and callbacks.
CpuBackendOptions serving_options(const Config& settings, const CpuInfo& cpu, const KernelTable& kernels);

// One short prompt and two tokens through the whole engine, so that a model that cannot compute is found
// before it is called ready. Its pages are free again afterwards. On the engine thread.
Status run_canary(Engine* engine, const LoadedModel& model, const TakeEvents& take_events);

}  // namespace tandem
