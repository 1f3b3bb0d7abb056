#include "worker/lent_pools.h"

#include <fmt/format.h>

#include "base/clock.h"

namespace tandem {

Result<HostPool*> LentPools::reader(uint32_t source) {
  if (source >= fds_.size())
    return invalid_argument(fmt::format("lent page: pool must be 0 to {}, got {}", fds_.size() - 1, source));
  if (readers_[source] == nullptr) {
    CHECK_ASSIGN(readers_[source], HostPool::open_reader(fds_[source], shape_));
  }
  return readers_[source].get();
}

Status LentPools::copy(uint32_t source, uint64_t generation, int group, RemotePage from, PageId to) {
  const int64_t start = monotonic_us();
  CHECK_ASSIGN(HostPool * pool, reader(source));
  Status status = write_page_(group, to, [&](uint8_t* memory) {
    return pool->copy_lent(generation, group, from.page, from.serial, memory);
  });
  if (!status.ok()) {
    readers_[source].reset();  // another owner may have laid it out differently
    return status;
  }
  const auto add = [](auto& counter, auto n) { counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); };
  add(counters_.pages, uint64_t{1});  // one writer
  add(counters_.bytes, static_cast<uint64_t>(shape_.page_bytes[static_cast<size_t>(group)]));
  add(counters_.seconds, static_cast<double>(monotonic_us() - start) * 1e-6);
  return ok_status();
}

}  // namespace tandem
