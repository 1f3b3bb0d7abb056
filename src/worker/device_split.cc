#include "worker/device_split.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/mib.h"
#include "model/kv_layouts.h"

namespace tandem {
namespace {

// K/V that the device's layers are to have room for.
int64_t wanted_kv_bytes(const DeviceSplitInput& in, const std::vector<int64_t>& page_bytes, const std::vector<size_t>& whole_page_bytes) {
  int64_t bytes = 0, whole = 0, device = 0;
  const int64_t tokens = in.least_tokens, P = in.options.page_size;
  for (size_t g = 0; g < page_bytes.size(); ++g) {
    bytes += ((tokens + P - 1) / P + 1) * page_bytes[g];
    device += page_bytes[g], whole += static_cast<int64_t>(whole_page_bytes[g]);
  }
  if (in.kv_pool_bytes == 0 || whole == 0) return bytes;
  return static_cast<int64_t>(static_cast<double>(in.kv_pool_bytes) * static_cast<double>(device) / static_cast<double>(whole));
}

}  // namespace

Status check_card(int64_t n_workers, int64_t budget_bytes, const GpuFacts& gpu) {
  if (n_workers < 2 || budget_bytes <= gpu.total_bytes / n_workers) return ok_status();
  return exhausted(fmt::format("device memory: {} workers of {} each (gpu.memory_budget_bytes) = {}, more than the {} of {}: set it to at "
                               "most {}, or run fewer workers there",
                               n_workers, mib(budget_bytes), mib(n_workers * budget_bytes), mib(gpu.total_bytes), gpu.name,
                               gpu.total_bytes / n_workers));
}

Result<DeviceSplit> choose_device_layers(const DeviceSplitInput& in) {
  const int n = in.config.n_layers;
  DeviceSplit split;
  const auto plan = [&](int first) {
    GpuOptions options = in.options;
    options.first_layer = split.first_layer = first;
    return plan_gpu_memory(in.config, in.weights, in.gpu, options);
  };
  if (in.n_layers > 0) {
    CHECK_ASSIGN(split.memory, plan(std::max(0, n - in.n_layers)));
    return split;
  }
  const std::vector<size_t> whole_page_bytes = kv_layouts(in.config, in.options.kv_type, in.options.page_size).page_bytes;
  Status refused = ok_status();
  for (int first = 0; first < n; ++first) {
    auto planned = plan(first);
    if (!planned.ok() && planned.status().code() != StatusCode::kExhausted) return planned.status();
    if (!planned.ok()) {
      refused = planned.status();
      continue;
    }
    const int64_t kv = wanted_kv_bytes(in, planned->page_bytes, whole_page_bytes), needed = planned->weights_bytes + planned->workspace_bytes + kv;
    if (needed > planned->budget_bytes) {
      refused = exhausted(fmt::format("device memory: {} weights + {} workspace + {} K/V = {} for {} of {} layers, more than the {} there are",
                                      mib(planned->weights_bytes), mib(planned->workspace_bytes), mib(kv), mib(needed), n - first, n,
                                      mib(planned->budget_bytes)));
      continue;
    }
    split.memory = *planned;
    if (first > 0) split.why = fmt::format("one layer more: {}", refused.message());
    return split;
  }
  return exhausted(fmt::format("not even one of {} layers fits the device: {}", n, refused.message()));
}

}  // namespace tandem
