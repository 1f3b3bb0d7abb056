#include "worker/kv_budget.h"

#include <catch2/catch.hpp>

#include "engine/page_table.h"
#include "worker/host_facts.h"

namespace tandem {
namespace {
KvBudgetInput input() {
  KvBudgetInput in;
  in.groups = {{0, 1000}};
  in.context_tokens = 8192, in.max_batch_size = 4, in.memory_bytes = int64_t{1} << 40;
  return in;
}
}  // namespace

TEST_CASE("by default: 2048 tokens for each sequence of the batch, at most a quarter of memory") {
  KvBudgetInput in = input();
  CHECK(plan_kv_budget(in)->n_pages == std::vector<int>{4 * 128});
  in.context_tokens = 512;
  CHECK(plan_kv_budget(in)->n_pages == std::vector<int>{4 * 32});
  in = input();
  in.memory_bytes = 4 * 100'500;
  auto plan = plan_kv_budget(in);
  CHECK((plan->n_pages == std::vector<int>{100} && plan->total_bytes == 100'000));
}

TEST_CASE("a configured size is used up, but not beyond what the batch could ever hold") {
  KvBudgetInput in = input();
  in.configured_bytes = 300'999;
  CHECK(plan_kv_budget(in)->n_pages == std::vector<int>{300});
  in.configured_bytes = int64_t{1} << 50;
  CHECK(plan_kv_budget(in)->n_pages == std::vector<int>{4 * 512});
}

TEST_CASE("a windowed group stops growing at the windows of all sequences; the rest goes to the full one") {
  KvBudgetInput in = input();
  in.groups = {{512, 5000}, {0, 1000}};
  in.configured_bytes = 2'500'000;
  auto plan = plan_kv_budget(in);
  REQUIRE(plan.ok());
  int peak = peak_pages(512, 16, 8192, 256);
  CHECK(plan->n_pages[0] == 4 * peak);
  CHECK(plan->n_pages[1] == (2'500'000 - 4 * peak * 5000) / 1000);
  CHECK(plan->total_bytes <= 2'500'000);
  in.configured_bytes = 600'000;  // not enough for all windows: both the same
  plan = plan_kv_budget(in);
  CHECK(plan->n_pages == std::vector<int>{100, 100});
}

TEST_CASE("too little is refused with what is needed") {
  KvBudgetInput in = input();
  in.configured_bytes = 17'999;
  auto plan = plan_kv_budget(in);
  REQUIRE_FALSE(plan.ok());
  CHECK(plan.status().code() == StatusCode::kExhausted);
  CHECK(plan.status().message().find("cache.kv_pool_bytes is 17999, this model needs at least 18000") != std::string::npos);
  in.configured_bytes = 18'000;
  CHECK(plan_kv_budget(in)->n_pages == std::vector<int>{18});
}

TEST_CASE("a control group's memory limit is read as the kernel writes it") {
  CHECK(parse_memory_limit("max") == 0);
  CHECK(parse_memory_limit("9223372036854771712") == 0);
  CHECK(parse_memory_limit("1073741824\n") == 1073741824);
  CHECK(parse_memory_limit("") == 0);
  CHECK(read_host_facts().memory_bytes > 64 << 20);
}

}  // namespace tandem
