#include "worker/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/mib.h"
#include "base/process_memory.h"

namespace tandem {

namespace {

// Of requests under way: texts, tokens, events, threads' stacks, the heap's own growth (tests/process/test_memory.py
// measures it).
constexpr int64_t kStreamBytes = 4 << 20;

int64_t budget_bytes(const Config& settings, const HostFacts& host) {
  const int64_t configured = settings.workers_memory_budget_bytes;
  return configured > 0 ? std::min(configured, host.memory_bytes) : host.memory_bytes;
}

}  // namespace

Result<KvBudget> plan_pool(const ModelConfig& config, const Config& settings, const HostFacts& host, int context_tokens,
                           const std::vector<int64_t>& page_bytes, double device_share) {
  const auto share = [&](int64_t bytes) { return device_share == 1 ? bytes : static_cast<int64_t>(static_cast<double>(bytes) * device_share); };
  KvBudgetInput input;
  for (size_t g = 0; g < page_bytes.size(); ++g)
    input.groups.push_back({config.kv_groups[g].window, page_bytes[g]});
  input.page_size = static_cast<int>(settings.cache_page_size_tokens);
  input.context_tokens = context_tokens;
  input.max_batch_size = static_cast<int>(settings.batch_max_batch_size);
  input.prefill_chunk_tokens = static_cast<int>(settings.batch_prefill_chunk_tokens);
  input.configured_bytes = share(settings.cache_kv_pool_bytes);
  input.swap_bytes = share(settings.cache_swap_pool_bytes);
  input.prefix_bytes = share(settings.cache_prefix_bytes);
  input.memory_bytes = budget_bytes(settings, host);
  return plan_kv_budget(input);
}

Result<ipc::MemoryPlan> plan_memory(const MemoryPlanInput& in) {
  const int n_rows = static_cast<int>(in.settings.batch_max_batch_size);
  const int n_tokens = n_rows + static_cast<int>(in.settings.batch_prefill_chunk_tokens);
  CHECK_ASSIGN(const CpuMemory cpu, plan_cpu_memory(in.config, in.weights, in.backend, n_tokens, n_rows, in.context_tokens));
  CHECK_ASSIGN(const KvBudget pool, plan_pool(in.config, in.settings, in.host, in.context_tokens, cpu.page_bytes));
  ipc::MemoryPlan plan;
  plan.weights_bytes = cpu.weights_bytes;
  plan.kv_pool_bytes = pool.total_bytes + pool.swap_bytes;
  plan.scratch_bytes = cpu.scratch_bytes;
  const auto now = read_process_memory();
  plan.process_bytes = (now.ok() ? now->pss_bytes : 0) + kStreamBytes;
  // The other workers have pools and buffers like this one; the weights are there once.
  const int64_t n_others = std::max<int64_t>(0, config_worker_count(in.settings) - 1);
  plan.other_bytes = in.other_bytes + n_others * (plan.kv_pool_bytes + plan.scratch_bytes + plan.process_bytes);
  plan.budget_bytes = budget_bytes(in.settings, in.host);
  plan.is_configured = in.settings.workers_memory_budget_bytes > 0;
  return plan;
}

ipc::MemoryPlan plan_host_memory(const Config& settings, const HostFacts& host, int64_t other_bytes) {
  ipc::MemoryPlan plan;
  plan.kv_pool_bytes = settings.cache_swap_pool_bytes;
  const auto now = read_process_memory();
  plan.process_bytes = (now.ok() ? now->pss_bytes : 0) + kStreamBytes;
  plan.other_bytes = other_bytes;
  plan.budget_bytes = budget_bytes(settings, host);
  plan.is_configured = settings.workers_memory_budget_bytes > 0;
  return plan;
}

int64_t total_bytes(const ipc::MemoryPlan& p) {
  return p.weights_bytes + p.lean_bytes + p.kv_pool_bytes + p.scratch_bytes + p.process_bytes + p.other_bytes;
}

std::string describe(const ipc::MemoryPlan& p) {
  return fmt::format("{} weights{} + {} KV pool + {} scratch + {} worker + {} rest of the process tree = {}", mib(p.weights_bytes),
                     p.lean_bytes > 0 ? " + " + mib(p.lean_bytes) + " lean weights" : "", mib(p.kv_pool_bytes), mib(p.scratch_bytes), mib(p.process_bytes),
                     mib(p.other_bytes), mib(total_bytes(p)));
}

Status check_memory_plan(const ipc::MemoryPlan& p) {
  const int64_t excess = total_bytes(p) - p.budget_bytes;
  if (excess <= 0) return ok_status();
  const int64_t pool = p.kv_pool_bytes - excess;
  const std::string bound = p.is_configured ? "workers.memory_budget_bytes" : "the memory there is";
  const std::string raise = p.is_configured ? "raise workers.memory_budget_bytes" : "give it more memory";
  return exhausted(fmt::format("memory: {}, more than {} of {} ({} bytes): {} or {}", describe(p), bound,
                               mib(p.budget_bytes), p.budget_bytes,
                               pool > 0 ? fmt::format("set cache.kv_pool_bytes to at most {}", pool)
                                        : std::string(p.lean_bytes > 0 ? "name a smaller file in weights.lean" : "take a smaller model"),
                               raise));
}

}  // namespace tandem
