// The pools of the prefill workers as a decode worker reads them: mapped when first lent from, looked at anew when
// their owner was replaced. Confined to the engine thread, but for the counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/page_source.h"
#include "worker/host_pool.h"

namespace tandem {

class LentPools : public PageSource {
 public:
  // `fds`: the memfds by the number of their worker; they stay the caller's. `own` outlives this.
  LentPools(std::vector<int> fds, HostPool* own) : fds_(std::move(fds)), readers_(fds_.size()), own_(own) {}
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
  HostPool* const own_;
  Counters counters_;
};

}  // namespace tandem
