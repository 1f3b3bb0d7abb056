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
  int64_t low = least, high = most;  // the most pages that the budget pays for
  while (low < high) {
    int64_t middle = low + (high - low + 1) / 2;
    if (bytes_of(in, middle) <= budget) low = middle;
    else high = middle - 1;
  }
  KvBudget plan;
  for (const KvGroupSize& g : in.groups) plan.n_pages.push_back(static_cast<int>(group_pages(in, g, low)));
  plan.total_bytes = bytes_of(in, low);
  return plan;
}

}  // namespace tandem
