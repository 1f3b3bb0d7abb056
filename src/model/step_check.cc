#include "model/step_check.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem {
namespace {

Status check_pages(const StepItem& item, const ModelConfig& config, const StepLimits& limits) {
  if (item.page_tables.size() != config.kv_groups.size()) return invalid_argument("step: one page table per KV group is needed");
  for (size_t g = 0; g < item.page_tables.size(); ++g) {
    const int n_pages = limits.n_pages(static_cast<int>(g)), window = config.kv_groups[g].window;
    const int first_key = window > 0 ? std::max(0, item.first_pos - window + 1) : 0;
    const int last = (item.first_pos + item.n_tokens - 1) / limits.page_size;
    for (int i = first_key / limits.page_size; i <= last; ++i) {
      const PageId page = item.page_tables[g][i];
      if (page < 0 || page >= n_pages)
        return invalid_argument(fmt::format("step: page {} of group {} is {}, not in [0, {})", i, g, page, n_pages));
    }
  }
  return ok_status();
}

}  // namespace

Status check_step(const StepBatch& batch, const ModelConfig& config, const StepLimits& limits) {
  const int64_t n_tokens = static_cast<int64_t>(batch.tokens.size());
  if (n_tokens == 0) return invalid_argument("step: no tokens");
  if (batch.weights == WeightSet::kLean && !limits.has_lean_set) return invalid_argument("step: these weights have no lean set");
  if (limits.takes_hidden != (batch.hidden != nullptr))
    return invalid_argument(limits.takes_hidden ? "step: the activations of the layer before are needed"
                                                : "step: activations of a layer before are not taken by the model's first");
  for (const int32_t token : batch.tokens) {
    if (token < 0 || token >= config.vocab_size)
      return invalid_argument(fmt::format("step: token id {} is not in [0, {})", token, config.vocab_size));
  }
  int64_t next = 0;
  for (const StepItem& item : batch.items) {
    if (item.first_token != next || item.n_tokens < 1 || item.first_pos < 0)
      return invalid_argument(fmt::format("step: item of {} tokens from {} at position {} does not follow {}", item.n_tokens,
                                          item.first_token, item.first_pos, next));
    if (item.first_pos > limits.context_tokens - item.n_tokens)
      return invalid_argument(fmt::format("step: item of {} tokens at position {} leaves the context of {}", item.n_tokens,
                                          item.first_pos, limits.context_tokens));
    next += item.n_tokens;
    CHECK_OK(check_pages(item, config, limits));
  }
  if (next != n_tokens) return invalid_argument("step: items do not cover the tokens");
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const int row = batch.logit_rows[i];
    if (row < 0 || row >= n_tokens || (i > 0 && row <= batch.logit_rows[i - 1]))
      return invalid_argument(fmt::format("step: logit row {} is not ascending in [0, {})", row, n_tokens));
  }
  return ok_status();
}

}  // namespace tandem
