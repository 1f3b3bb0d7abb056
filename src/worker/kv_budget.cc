#include "worker/kv_budget.h"

#include <algorithm>

#include "engine/page_table.h"

namespace tandem {
namespace {

constexpr int64_t kDefaultTokens = 2048;  // per sequence, as config_keys.def promises

int64_t pages_for(int64_t n_tokens, int page_size) { return (n_tokens + page_size - 1) / page_size; }

// Pages of a group when a full-attention group has `n_full`.
int64_t group_pages(const KvBudgetInput& in, const KvGroupSize& group, int64_t n_full) {
  if (group.window == 0) return n_full;
  int64_t peak = peak_pages(group.window, in.page_size, in.context_tokens, in.prefill_chunk_tokens);
  return std::min(n_full, peak * in.max_batch_size);
}

int64_t bytes_of(const KvBudgetInput& in, int64_t n_full) {
  int64_t bytes = 0;
  for (const KvGroupSize& g : in.groups) bytes += group_pages(in, g, n_full) * g.page_bytes;
  return bytes;
}

// The most blocks, from `low` on (which fits), that `budget` pays for.
int64_t blocks_for(const KvBudgetInput& in, int64_t low, int64_t high, int64_t budget) {
  while (low < high) {
    int64_t middle = low + (high - low + 1) / 2;
    if (bytes_of(in, middle) <= budget) low = middle;
    else high = middle - 1;
  }
  return low;
}

// Bookkeeping of a cached block: its tokens, page numbers, and the map's node.
int64_t cached_block_bytes(const KvBudgetInput& in) {
  int64_t bytes = 160 + in.page_size * 4;
  for (const KvGroupSize& g : in.groups) bytes += g.page_bytes + 4 + 8;
  return bytes;
}

}  // namespace

Result<KvBudget> plan_kv_budget(const KvBudgetInput& in) {
  int64_t most = pages_for(in.context_tokens, in.page_size) * in.max_batch_size;
  most = std::min<int64_t>(most, INT32_MAX / 64);  // page numbers and token counts stay 32-bit
  int64_t least = pages_for(std::min(in.context_tokens, in.prefill_chunk_tokens + 1), in.page_size) + 1;
  least = std::min(least, most);
  int64_t budget = in.configured_bytes;
  if (budget == 0) {
    int64_t tokens = std::min<int64_t>(kDefaultTokens, in.context_tokens);
    int64_t wanted = std::max(pages_for(tokens, in.page_size) * in.max_batch_size,
                              pages_for(in.context_tokens, in.page_size));  // a whole context fits
    wanted = std::min(most, wanted);
    budget = std::min(bytes_of(in, wanted), in.memory_bytes / 4);
  }
  if (bytes_of(in, least) > budget) {
    std::string which = in.configured_bytes != 0 ? "cache.kv_pool_bytes is" : "a quarter of the memory is";
    return exhausted(which + " " + std::to_string(budget) + ", this model needs at least " +
                     std::to_string(bytes_of(in, least)) +
                     "; set cache.kv_pool_bytes higher or lower batch.prefill_chunk_tokens");
  }
  int64_t n_blocks = blocks_for(in, least, most, budget);
  KvBudget plan;
  int64_t n_swap_blocks = blocks_for(in, 0, most, in.swap_bytes);
  if (in.swap_bytes > 0 && n_swap_blocks == 0) {
    return exhausted("cache.swap_pool_bytes is " + std::to_string(in.swap_bytes) + ", one page of each kind takes " +
                     std::to_string(bytes_of(in, 1)) + "; set it higher, or to 0 for no swap pool");
  }
  for (const KvGroupSize& g : in.groups) {
    plan.n_pages.push_back(static_cast<int>(group_pages(in, g, n_blocks)));
    plan.n_swap_pages.push_back(static_cast<int>(group_pages(in, g, n_swap_blocks)));
  }
  plan.total_bytes = bytes_of(in, n_blocks);
  plan.swap_bytes = bytes_of(in, n_swap_blocks);
  if (in.prefix_bytes > 0)
    plan.max_cached_pages = static_cast<int>(std::min<int64_t>(in.prefix_bytes / cached_block_bytes(in), INT32_MAX));
  return plan;
}

}  // namespace tandem
