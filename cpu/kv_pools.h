// The KV pages of the CPU: one pool per KV group, reserved whole. Who owns which page is the engine's
// business; here pages are only memory. Confined to the engine thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "cpu/arena.h"
#include "kernels/kernel_table.h"
#include "model/backend.h"
#include "model/model_config.h"

namespace tandem {

class KvPools {
 public:
  KvPools(const ModelConfig& config, KvType type, int page_size);

  std::vector<int64_t> page_bytes() const;  // per group
  // n_pages: one count >= 1 per group. Once. kExhausted names sizes. `touch_later`: see Backend::touch_pages.
  Status reserve(const std::vector<int>& n_pages, bool touch_later);
  // Instead of reserve(): the pages lie in the caller's memory, one address a group.
  Status place(const std::vector<int>& n_pages, const std::vector<uint8_t*>& memory);
  Status touch(const std::atomic<bool>& stop);
  Status copy(std::span<const PageCopy> copies);
  Status import(int group, PageId to, const std::function<Status(uint8_t*)>& fill);

  int n_pages(int group) const { return groups_[static_cast<size_t>(group)].n_pages; }
  const KvLayout& layout(int layer) const { return layouts_[static_cast<size_t>(layer)]; }
  uint8_t* pool(int group) { return groups_[static_cast<size_t>(group)].data; }
  uint8_t* page(int group, PageId id) {
    const Group& g = groups_[static_cast<size_t>(group)];
    return g.data + static_cast<size_t>(id) * g.page_bytes;
  }

 private:
  struct Group {
    size_t page_bytes = 0;
    int n_pages = 0;
    uint8_t* data = nullptr;
    Arena memory;  // of `data`, unless that is the caller's
  };
  std::vector<Group> groups_;
  std::vector<KvLayout> layouts_;  // per layer
};

}  // namespace tandem
