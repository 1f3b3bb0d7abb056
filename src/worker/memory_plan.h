// The memory ceiling: what the process tree will hold at most, against what it may.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "cpu/cpu_backend.h"
#include "ipc/messages.h"
#include "worker/host_facts.h"
#include "worker/kv_budget.h"

namespace tandem {

struct MemoryPlanInput {
  const ModelConfig& config;
  const ModelWeights& weights;
  const CpuBackendOptions& backend;
  const Config& settings;
  const HostFacts& host;
  int context_tokens;   // in force
  int64_t other_bytes;  // PSS of the rest of the process tree
};
// Measures what this process holds already (file, vocabulary) and adds what loading and serving will take.
Result<ipc::MemoryPlan> plan_memory(const MemoryPlanInput& input);
// The pool that these settings ask for; page_bytes per KV group. device_share: the part of each byte of the settings
// that is a device's, where page_bytes are of its layers alone.
Result<KvBudget> plan_pool(const ModelConfig& config, const Config& settings, const HostFacts& host, int context_tokens,
                           const std::vector<int64_t>& page_bytes, double device_share = 1);

// Of a worker whose weights and K/V are in a device's memory.
ipc::MemoryPlan plan_host_memory(const Config& settings, const HostFacts& host, int64_t other_bytes);

int64_t total_bytes(const ipc::MemoryPlan& plan);
// "105.3 MiB weights + 1536.0 MiB KV pool + … = 1702.4 MiB"; behind the weights those from the file of weights.lean
std::string describe(const ipc::MemoryPlan& plan);
// kExhausted with the arithmetic, and what would fit, when the plan is above its budget.
Status check_memory_plan(const ipc::MemoryPlan& plan);

}  // namespace tandem
