// The arithmetic of the memory ceiling.
#include "worker/memory_plan.h"

#include <catch2/catch.hpp>

namespace tandem {
namespace {

constexpr int64_t kMiB = 1 << 20;

ipc::MemoryPlan plan_of(int64_t budget, bool is_configured) {
  ipc::MemoryPlan plan;
  plan.weights_bytes = 100 * kMiB, plan.kv_pool_bytes = 500 * kMiB, plan.scratch_bytes = 20 * kMiB;
  plan.process_bytes = 30 * kMiB, plan.other_bytes = 10 * kMiB;
  plan.budget_bytes = budget, plan.is_configured = is_configured;
  return plan;
}

}  // namespace

TEST_CASE("memory plan: every part counts, and the limit itself is allowed") {
  CHECK(total_bytes(plan_of(0, true)) == 660 * kMiB);
  CHECK(check_memory_plan(plan_of(660 * kMiB, true)).ok());
  const Status status = check_memory_plan(plan_of(660 * kMiB - 1, true));
  CHECK(status.code() == StatusCode::kExhausted);
  for (const char* text : {"100.0 MiB weights", "500.0 MiB KV pool", "20.0 MiB scratch", "30.0 MiB worker", "10.0 MiB rest",
                           "= 660.0 MiB", "workers.memory_budget_bytes", "cache.kv_pool_bytes to at most 524287999"}) {
    INFO(text);
    CHECK(status.message().find(text) != std::string::npos);
  }
}

TEST_CASE("memory plan: advice where the pool cannot help, and where the machine is the bound") {
  const Status small = check_memory_plan(plan_of(160 * kMiB, true));
  CHECK(small.message().find("smaller model") != std::string::npos);
  const Status machine = check_memory_plan(plan_of(600 * kMiB, false));
  CHECK(machine.message().find("the memory there is") != std::string::npos);
  CHECK(machine.message().find("memory_budget_bytes") == std::string::npos);
}

TEST_CASE("memory plan: weights from a file of weights.lean count, and are named") {
  ipc::MemoryPlan plan = plan_of(700 * kMiB, true);
  plan.lean_bytes = 40 * kMiB;
  CHECK(check_memory_plan(plan).ok());
  plan.lean_bytes += 1;
  const std::string message = check_memory_plan(plan).message();
  CHECK(message.find("100.0 MiB weights + 40.0 MiB lean weights + 500.0 MiB KV pool") != std::string::npos);
  CHECK(message.find("= 700.0 MiB, more than workers.memory_budget_bytes") != std::string::npos);
  CHECK(message.find("cache.kv_pool_bytes to at most 524287999") != std::string::npos);
  plan.budget_bytes = 180 * kMiB;
  CHECK(check_memory_plan(plan).message().find("a smaller file in weights.lean") != std::string::npos);
}

TEST_CASE("memory plan: without a configured pool, it takes at most a quarter of the budget") {
  ModelConfig config;
  config.kv_groups.resize(1);
  Config settings;
  HostFacts host;
  host.memory_bytes = 8192 * kMiB;
  const std::vector<int64_t> page_bytes = {1 * kMiB};
  const auto machine = plan_pool(config, settings, host, 65536, page_bytes);
  REQUIRE(machine.ok());
  CHECK(machine->total_bytes == 2048 * kMiB);
  settings.workers_memory_budget_bytes = 1024 * kMiB;
  const auto budget = plan_pool(config, settings, host, 65536, page_bytes);
  REQUIRE(budget.ok());
  CHECK(budget->total_bytes == 256 * kMiB);
  settings.workers_memory_budget_bytes = 65536 * kMiB;  // more than there is
  CHECK(plan_pool(config, settings, host, 65536, page_bytes)->total_bytes == 2048 * kMiB);
}

}  // namespace tandem
