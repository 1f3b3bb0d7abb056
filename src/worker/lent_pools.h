// The pools of the prefill workers as a decode worker reads them: mapped when first lent from, looked at anew when
// their owner was replaced. Confined to the engine thread, but for the counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/page_source.h"
#include "worker/host_pool.h"

namespace tandem {

class LentPools : public PageSource {
 public:
  // Puts a page into the own pool: `fill` writes its bytes to where it is told. Returns what `fill` returned, or why
  // there is no such page.
  using WritePage = std::function<Status(int group, PageId to, const std::function<Status(uint8_t*)>& fill)>;
  // `fds`: the memfds by the number of their worker; they stay the caller's. `shape`: of the own pages.
  LentPools(std::vector<int> fds, HostPoolShape shape, WritePage write_page)
      : fds_(std::move(fds)), readers_(fds_.size()), shape_(std::move(shape)), write_page_(std::move(write_page)) {}
  // Into the pages of `own`, which outlives this.
  LentPools(std::vector<int> fds, HostPool* own)
      : LentPools(std::move(fds), own->shape(), [own](int group, PageId to, const std::function<Status(uint8_t*)>& fill) {
          return fill(own->page_memory(group, to));
        }) {}
  Status copy(uint32_t source, uint64_t generation, int group, RemotePage from, PageId to) override;

  struct Counters {  // read by other threads
    std::atomic<uint64_t> pages{0}, bytes{0};
    std::atomic<double> seconds{0};
  };
  const Counters& counters() const { return counters_; }

 private:
  Result<HostPool*> reader(uint32_t source);
  const std::vector<int> fds_;
  std::vector<std::unique_ptr<HostPool>> readers_;
  const HostPoolShape shape_;
  const WritePage write_page_;
  Counters counters_;
};

}  // namespace tandem
