#include "gpu/kv_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/kv_layouts.h"

namespace tandem {
namespace {
constexpr int kSlots = 32;  // pages on their way at once
}

KvPages::KvPages(const ModelConfig& config, KvType type, int page_size) : groups_(config.kv_groups.size()) {
  KvLayouts layouts = kv_layouts(config, type, page_size);
  layouts_ = std::move(layouts.of_layers);
  for (size_t g = 0; g < groups_.size(); ++g) groups_[g].page_bytes = layouts.page_bytes[g];
}

std::vector<int64_t> KvPages::page_bytes() const {
  std::vector<int64_t> bytes;
  for (const Group& g : groups_) bytes.push_back(static_cast<int64_t>(g.page_bytes));
  return bytes;
}

Status KvPages::reserve(const std::vector<int>& n_pages, const std::vector<int>& n_host_pages) {
  if (n_pages.size() != groups_.size() || n_host_pages.size() != groups_.size())
    return invalid_argument(fmt::format("KV pool: {} page counts given, the model has {} KV groups", n_pages.size(), groups_.size()));
  CUDA_OK(cudaStreamCreateWithFlags(stream_.put(), cudaStreamNonBlocking));
  CUDA_OK(cudaEventCreateWithFlags(ordered_.put(), cudaEventDisableTiming));
  size_t widest = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    if (n_host_pages[g] < 0 || n_pages[g] - n_host_pages[g] < 1)
      return invalid_argument(fmt::format("KV pool: group {} asks for {} pages, {} of them in host memory; at least 1 of the device is needed",
                                          g, n_pages[g], n_host_pages[g]));
    group.n_pages = n_pages[g];
    group.n_device = n_pages[g] - n_host_pages[g];
    group.crossed.assign(static_cast<size_t>(group.n_device), 0);
    if (group.page_bytes == 0) continue;  // its layers are another backend's
    const size_t bytes = static_cast<size_t>(group.n_device) * group.page_bytes;
    if (cudaError_t error = cudaMalloc(group.device.put(), bytes); error != cudaSuccess)
      return {cuda_status(error, "cudaMalloc").code(), fmt::format("no device memory for the KV pool of group {} ({} pages of {} bytes): {}", g,
                                                                   group.n_device, group.page_bytes, cudaGetErrorString(error))};
    if (n_host_pages[g] > 0)
      CUDA_OK(cudaHostAlloc(group.host.put(), static_cast<size_t>(n_host_pages[g]) * group.page_bytes, cudaHostAllocDefault));
    widest = std::max(widest, group.page_bytes);
  }
  for (int i = 0; i < kSlots; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.offset = staging_.add(widest);
    CUDA_OK(cudaEventCreateWithFlags(slot.done.put(), cudaEventDisableTiming));
  }
  return staging_.allocate();
}

uint8_t* KvPages::address(const Group& g, PageId page) const {
  const size_t p = static_cast<size_t>(page), n = static_cast<size_t>(g.n_device);
  return p < n ? static_cast<uint8_t*>(g.device.get()) + p * g.page_bytes
               : static_cast<uint8_t*>(g.host.get()) + (p - n) * g.page_bytes;
}

Status KvPages::copy(std::span<const PageCopy> copies, cudaStream_t compute) {
  for (const PageCopy& c : copies) {
    if (c.group < 0 || c.group >= static_cast<int>(groups_.size()) || c.from < 0 || c.to < 0 || c.from >= n_pages(c.group) || c.to >= n_pages(c.group))
      return internal_error(fmt::format("copy of page {} to {} in group {}: no such page", c.from, c.to, c.group));
    Group& g = groups_[static_cast<size_t>(c.group)];
    if (c.from == c.to || g.page_bytes == 0) continue;
    const bool is_swap = g.is_host(c.from) || g.is_host(c.to);
    if (is_swap) {  // the page may be part of a step that runs
      CUDA_OK(cudaEventRecord(ordered_.get(), compute));
      CUDA_OK(cudaStreamWaitEvent(stream_.get(), ordered_.get(), 0));
    } else {
      for (PageId page : {c.from, c.to}) CHECK_OK(wait_for(c.group, &page, 1, compute));
    }
    CUDA_OK(cudaMemcpyAsync(address(g, c.to), address(g, c.from), g.page_bytes, cudaMemcpyDefault, is_swap ? stream_.get() : compute));
    if (is_swap) CHECK_OK(end_crossing(&g, g.is_host(c.to) ? c.from : c.to));
  }
  return ok_status();
}

// What was just put on the stream is the page's last crossing.
Status KvPages::end_crossing(Group* g, PageId page) {
  CUDA_OK(cudaEventRecord(slots_[n_crossings_ % kSlots].done.get(), stream_.get()));
  ++n_crossings_;
  if (!g->is_host(page)) g->crossed[static_cast<size_t>(page)] = n_crossings_;
  return ok_status();
}

Status KvPages::import(int group, PageId to, const std::function<Status(uint8_t*)>& fill, cudaEvent_t after) {
  if (group < 0 || group >= static_cast<int>(groups_.size()) || to < 0 || to >= n_device_pages(group))
    return internal_error(fmt::format("import into page {} of group {}: no such page", to, group));
  Group& g = groups_[static_cast<size_t>(group)];
  Slot& slot = slots_[n_crossings_ % kSlots];
  if (slot.staged > n_done_) {
    CUDA_OK(cudaEventSynchronize(slot.done.get()));
    n_done_ = slot.staged;
  }
  CHECK_OK(fill(staging_.at(slot.offset)));
  if (after != nullptr) CUDA_OK(cudaStreamWaitEvent(stream_.get(), after, 0));
  CUDA_OK(cudaMemcpyAsync(address(g, to), staging_.at(slot.offset), g.page_bytes, cudaMemcpyHostToDevice, stream_.get()));
  slot.staged = n_crossings_ + 1;
  return end_crossing(&g, to);
}

bool KvPages::has_crossings() {
  while (n_done_ < n_crossings_) {
    if (cudaEventQuery(slots_[n_done_ % kSlots].done.get()) != cudaSuccess) return true;
    ++n_done_;
  }
  return false;
}

Status KvPages::wait_for(int group, const PageId* table, int n_pages, cudaStream_t compute) {
  if (!has_crossings()) return ok_status();
  const Group& g = groups_[static_cast<size_t>(group)];
  uint64_t last = 0;
  for (int i = 0; i < n_pages; ++i) {
    if (table[i] >= 0 && table[i] < g.n_device) last = std::max(last, g.crossed[static_cast<size_t>(table[i])]);
  }
  if (last <= n_done_) return ok_status();
  CUDA_OK(cudaStreamWaitEvent(compute, slots_[(last - 1) % kSlots].done.get(), 0));
  return ok_status();
}

}  // namespace tandem
