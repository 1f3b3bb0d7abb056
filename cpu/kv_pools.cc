#include "cpu/kv_pools.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "model/kv_layouts.h"

namespace tandem {

KvPools::KvPools(const ModelConfig& config, KvType type, int page_size) : groups_(config.kv_groups.size()) {
  KvLayouts layouts = kv_layouts(config, type, page_size);
  layouts_ = std::move(layouts.of_layers);
  for (size_t g = 0; g < groups_.size(); ++g) groups_[g].page_bytes = layouts.page_bytes[g];
}

std::vector<int64_t> KvPools::page_bytes() const {
  std::vector<int64_t> bytes;
  for (const Group& g : groups_) bytes.push_back(static_cast<int64_t>(g.page_bytes));
  return bytes;
}

Status KvPools::reserve(const std::vector<int>& n_pages, bool touch_later) {
  if (n_pages.size() != groups_.size()) {
    return invalid_argument(fmt::format("KV pool: {} page counts given, the model has {} KV groups",
                                        n_pages.size(), groups_.size()));
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    if (n_pages[g] < 1) {
      return invalid_argument(fmt::format("KV pool: group {} asks for {} pages, at least 1 is needed", g,
                                          n_pages[g]));
    }
    group.n_pages = n_pages[g];
    if (group.page_bytes == 0) continue;  // its layers are another backend's
    const size_t count = static_cast<size_t>(n_pages[g]);
    const std::string purpose =
        fmt::format("the KV pool of group {} ({} pages of {} bytes)", g, count, group.page_bytes);
    if (count > std::numeric_limits<size_t>::max() / group.page_bytes) {
      return exhausted("no memory for " + purpose + ": the size overflows");
    }
    const size_t n_bytes = count * group.page_bytes;
    CHECK_ASSIGN(group.memory, touch_later ? Arena::reserve(n_bytes, purpose) : Arena::allocate(n_bytes, purpose));
    group.data = group.memory.data();
  }
  return ok_status();
}

Status KvPools::place(const std::vector<int>& n_pages, const std::vector<uint8_t*>& memory) {
  if (n_pages.size() != groups_.size() || memory.size() != groups_.size()) {
    return invalid_argument(fmt::format("KV pool: {} page counts and {} addresses given, the model has {} KV groups",
                                        n_pages.size(), memory.size(), groups_.size()));
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (n_pages[g] < 1 || memory[g] == nullptr || reinterpret_cast<uintptr_t>(memory[g]) % 64 != 0) {
      return invalid_argument(fmt::format("KV pool: group {} has {} pages at {}, at least 1 at an address of 64s is needed",
                                          g, n_pages[g], static_cast<void*>(memory[g])));
    }
    groups_[g].data = memory[g];
    groups_[g].n_pages = n_pages[g];
  }
  return ok_status();
}

Status KvPools::touch(const std::atomic<bool>& stop) {
  constexpr size_t kSlice = 8u << 20;  // a few milliseconds between looks at `stop`
  for (Group& group : groups_) {
    for (size_t at = 0; at < group.memory.size(); at += kSlice) {
      if (stop.load(std::memory_order_relaxed)) return ok_status();
      const int err = group.memory.touch(at, at + kSlice);
      if (err == EINVAL) return ok_status();
      if (err != 0 && err != EINTR && err != EAGAIN) {
        return exhausted(fmt::format("no memory for the KV pool: {} of {} bytes are there: {}", at,
                                     group.memory.size(), std::strerror(err)));
      }
    }
  }
  return ok_status();
}

Status KvPools::import(int group, PageId to, const std::function<Status(uint8_t*)>& fill) {
  if (group < 0 || group >= static_cast<int>(groups_.size()) || to < 0 || to >= n_pages(group))
    return internal_error(fmt::format("import into page {} of group {}: no such page", to, group));
  return fill(page(group, to));
}

Status KvPools::copy(std::span<const PageCopy> copies) {
  for (const PageCopy& c : copies) {
    if (c.group < 0 || c.group >= static_cast<int>(groups_.size()) || c.from < 0 || c.to < 0 ||
        c.from >= n_pages(c.group) || c.to >= n_pages(c.group)) {
      return internal_error(fmt::format("copy of page {} to {} in group {}: no such page", c.from, c.to,
                                        c.group));
    }
    if (c.from == c.to || groups_[static_cast<size_t>(c.group)].page_bytes == 0) continue;
    std::memcpy(page(c.group, c.to), page(c.group, c.from),
                groups_[static_cast<size_t>(c.group)].page_bytes);
  }
  return ok_status();
}

}  // namespace tandem
