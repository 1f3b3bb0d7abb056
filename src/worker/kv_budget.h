// How many KV pages each group gets from a number of bytes. Pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace tandem {

struct KvGroupSize {
  int window = 0;          // 0: full attention
  int64_t page_bytes = 0;
};
struct KvBudgetInput {
  std::vector<KvGroupSize> groups;
  int page_size = 16;
  int context_tokens = 0;
  int max_batch_size = 1;
  int prefill_chunk_tokens = 256;
  int64_t configured_bytes = 0;  // cache.kv_pool_bytes; 0: as config_keys.def says
  int64_t swap_bytes = 0;        // cache.swap_pool_bytes; 0: no swap tier
  int64_t prefix_bytes = 0;      // cache.prefix_bytes; 0: no bound but the pool
  int64_t memory_bytes = 0;      // of the machine: without a configured size, at most a quarter of it
};
struct KvBudget {
  std::vector<int> n_pages;  // per group
  std::vector<int> n_swap_pages;  // per group
  int max_cached_pages = INT32_MAX;  // per group
  int64_t total_bytes = 0;
  int64_t swap_bytes = 0;
};

// Groups grow together: a windowed one stops at what max_batch_size sequences can hold of it. kExhausted names
// the least size that serves one sequence of a chunk's length.
Result<KvBudget> plan_kv_budget(const KvBudgetInput& input);

}  // namespace tandem
