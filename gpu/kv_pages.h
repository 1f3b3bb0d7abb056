// K/V pages in device memory, one piece a KV group; pages behind the device's own are pinned host memory, the swap
// tier, from where they are only copied. Confined to the engine thread.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "gpu/device_buffer.h"
#include "kernels/kernel_table.h"
#include "model/backend.h"
#include "model/model_config.h"

namespace tandem {

class KvPages {
 public:
  KvPages(const ModelConfig& config, KvType type, int page_size);

  std::vector<int64_t> page_bytes() const;
  // n_host_pages[g] of the n_pages[g] are the swap tier's.
  Status reserve(const std::vector<int>& n_pages, const std::vector<int>& n_host_pages);
  const KvLayout& layout(int layer) const { return layouts_[static_cast<size_t>(layer)]; }
  int n_pages(int group) const { return groups_[static_cast<size_t>(group)].n_pages; }
  int n_device_pages(int group) const { return groups_[static_cast<size_t>(group)].n_device; }
  uint8_t* pool(int group) const { return static_cast<uint8_t*>(groups_[static_cast<size_t>(group)].device.get()); }

  // In order: between device pages on `compute`; to and from the swap tier on the pages' own stream, behind what
  // `compute` was given so far, and beside what comes next unless that uses the page.
  Status copy(std::span<const PageCopy> copies, cudaStream_t compute);
  // Page `to` comes from `fill`, which writes its bytes into pinned memory: the copy runs on the pages' own stream,
  // beside compute, but behind `after` if not null.
  Status import(int group, PageId to, const std::function<Status(uint8_t*)>& fill, cudaEvent_t after);
  // `compute` waits for imports and swaps of the pages of the table, if any is under way.
  Status wait_for(int group, const PageId* table, int n_pages, cudaStream_t compute);

 private:
  struct Group {
    size_t page_bytes = 0;
    int n_pages = 0, n_device = 0;
    DeviceMemory device;
    PinnedMemory host;
    std::vector<uint64_t> crossed;  // per device page: number of the last import into it, or copy from or to the swap tier
    bool is_host(PageId page) const { return page >= n_device; }
  };
  struct Slot {
    size_t offset = 0;
    uint64_t staged = 0;  // number of the import whose bytes are here
    CudaEvent done;       // of the last crossing that came by: one stream, so that all before it have ended too
  };
  uint8_t* address(const Group& g, PageId page) const;
  bool has_crossings();  // some may be under way
  Status end_crossing(Group* g, PageId page);

  std::vector<Group> groups_;
  std::vector<KvLayout> layouts_;  // per layer
  CudaStream stream_;
  CudaEvent ordered_;
  PinnedPool staging_;
  std::vector<Slot> slots_;
  uint64_t n_crossings_ = 0, n_done_ = 0;  // begun, known to have ended
};

}  // namespace tandem
