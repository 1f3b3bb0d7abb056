#include "worker/host_pool.h"

#define XXH_INLINE_ALL  // no library at run time
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>
#include <thread>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels answer EINVAL
#endif

namespace tandem {
namespace {

constexpr uint64_t kMagic = 0x32304c4f4f504b54;  // "TKPOOL02"
constexpr size_t kMaxGroups = 32;
constexpr size_t kMaxPageTokens = 32;
constexpr size_t kAlignment = 2u << 20;  // of a group's pages: huge pages where the kernel gives them
enum SlotState : uint32_t { kFree, kFilling, kSealed };

}  // namespace

struct HostPoolHeader {
  uint64_t magic, fingerprint;
  uint32_t page_size, n_groups;
  int64_t page_bytes[kMaxGroups];
  int32_t n_pages[kMaxGroups];
  std::atomic<uint64_t> generation;
  std::atomic<uint32_t> is_committed;  // all memory was touched once
};
struct HostPoolSlot {
  std::atomic<uint32_t> state, serial;
  uint64_t generation;  // of the worker that took the page
  uint64_t key, entry_serial, parent;
  uint32_t index, n_tokens;
  uint64_t page_checksum;
  int32_t tokens[kMaxPageTokens];
  uint64_t checksum;  // of all from `key` to here
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

namespace {

constexpr size_t kHeaderBytes = 4096;
static_assert(sizeof(HostPoolHeader) <= kHeaderBytes);

uint64_t slot_checksum(const HostPoolSlot& s) {
  constexpr size_t kBegin = offsetof(HostPoolSlot, key), kEnd = offsetof(HostPoolSlot, checksum);
  return XXH3_64bits(reinterpret_cast<const char*>(&s) + kBegin, kEnd - kBegin);
}

// Offsets of all parts; false: the sizes overflow.
bool lay_out(const HostPoolShape& shape, std::vector<size_t>* slot_begins, std::vector<size_t>* offsets,
             size_t* n_bytes) {
  size_t n_slots = 0;
  for (int n : shape.n_pages) {
    slot_begins->push_back(n_slots);
    n_slots += static_cast<size_t>(n);
  }
  size_t at = 0;
  if (__builtin_mul_overflow(n_slots, sizeof(HostPoolSlot), &at)) return false;
  at += kHeaderBytes;
  for (size_t g = 0; g < shape.n_pages.size(); ++g) {
    at = (at + kAlignment - 1) / kAlignment * kAlignment;
    offsets->push_back(at);
    size_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<size_t>(shape.n_pages[g]), static_cast<size_t>(shape.page_bytes[g]), &bytes) ||
        __builtin_add_overflow(at, bytes, &at) || at > static_cast<size_t>(INT64_MAX) / 2)
      return false;
  }
  *n_bytes = at;
  return true;
}

Status check_shape(const HostPoolShape& s) {
  if (s.page_size < 1 || s.page_size > static_cast<int>(kMaxPageTokens))
    return invalid_argument(fmt::format("host pool: page_size must be 1 to {} tokens, got {}", kMaxPageTokens, s.page_size));
  if (s.page_bytes.empty() || s.page_bytes.size() > kMaxGroups || s.n_pages.size() != s.page_bytes.size())
    return invalid_argument(fmt::format("host pool: 1 to {} KV groups, got {} sizes and {} counts", kMaxGroups,
                                        s.page_bytes.size(), s.n_pages.size()));
  for (size_t g = 0; g < s.n_pages.size(); ++g) {
    if (s.n_pages[g] < 1 || s.page_bytes[g] < 1)
      return invalid_argument(fmt::format("host pool: group {} has {} pages of {} bytes, at least 1 of each is needed", g,
                                          s.n_pages[g], s.page_bytes[g]));
  }
  return ok_status();
}

Result<uint8_t*> map(int fd, size_t n_bytes, int protection) {
  struct stat st{};
  if (fstat(fd, &st) != 0) return errno_status(errno, "cannot look at the host pool");
  if (st.st_size < 0 || static_cast<size_t>(st.st_size) < n_bytes)
    return data_loss(fmt::format("host pool: {} bytes are there, {} needed", st.st_size, n_bytes));
  void* memory = mmap(nullptr, n_bytes, protection, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED)
    return exhausted(fmt::format("no memory for the host pool of {} bytes: {}", n_bytes, std::strerror(errno)));
  madvise(memory, n_bytes, MADV_HUGEPAGE);  // a wish
  return static_cast<uint8_t*>(memory);
}

}  // namespace

Result<int64_t> HostPool::bytes_needed(const HostPoolShape& shape) {
  CHECK_OK(check_shape(shape));
  std::vector<size_t> begins, offsets;
  size_t n_bytes = 0;
  if (!lay_out(shape, &begins, &offsets, &n_bytes)) return exhausted("host pool: the size overflows");
  return static_cast<int64_t>(n_bytes);
}

HostPool::HostPool(HostPoolShape shape, uint8_t* memory, size_t n_bytes)
    : shape_(std::move(shape)), memory_(memory), n_bytes_(n_bytes) {
  size_t total = 0;
  lay_out(shape_, &slot_begins_, &group_offsets_, &total);
  table_bytes_ = kHeaderBytes + (slot_begins_.back() + static_cast<size_t>(shape_.n_pages.back())) * sizeof(HostPoolSlot);
}

HostPool::~HostPool() { munmap(memory_, n_bytes_); }

HostPoolHeader* HostPool::header() const { return reinterpret_cast<HostPoolHeader*>(memory_); }
HostPoolSlot* HostPool::slot(int group, PageId page) const {
  size_t i = slot_begins_[static_cast<size_t>(group)] + static_cast<size_t>(page);
  return reinterpret_cast<HostPoolSlot*>(memory_ + kHeaderBytes) + i;
}
uint64_t HostPool::generation() const { return header()->generation.load(std::memory_order_acquire); }

Result<std::unique_ptr<HostPool>> HostPool::open(int fd, const HostPoolShape& shape, uint64_t generation) {
  CHECK_ASSIGN(const int64_t n_bytes, bytes_needed(shape));
  CHECK_ASSIGN(uint8_t* memory, map(fd, static_cast<size_t>(n_bytes), PROT_READ | PROT_WRITE));
  std::unique_ptr<HostPool> pool(new HostPool(shape, memory, static_cast<size_t>(n_bytes)));
  CHECK_OK(pool->adopt_header(generation));
  return pool;
}

// The table's own memory is committed here, so that no store to it can fail later.
Status HostPool::adopt_header(uint64_t generation) {
  const size_t n_table = table_bytes_;
  if (madvise(memory_, n_table, MADV_POPULATE_WRITE) != 0 && errno != EINVAL && errno != EINTR && errno != EAGAIN)
    return exhausted(fmt::format("no memory for the host pool's table of {} bytes: {}", n_table, std::strerror(errno)));
  HostPoolHeader wanted{};
  wanted.magic = kMagic, wanted.fingerprint = shape_.fingerprint;
  wanted.page_size = static_cast<uint32_t>(shape_.page_size);
  wanted.n_groups = static_cast<uint32_t>(shape_.n_pages.size());
  std::copy(shape_.page_bytes.begin(), shape_.page_bytes.end(), wanted.page_bytes);
  std::copy(shape_.n_pages.begin(), shape_.n_pages.end(), wanted.n_pages);
  HostPoolHeader* h = header();
  const bool is_known = std::memcmp(static_cast<void*>(h), &wanted, offsetof(HostPoolHeader, generation)) == 0;
  h->generation.store(generation, std::memory_order_release);  // readers of the predecessor's loans stop here
  if (!is_known) {
    h->is_committed.store(0, std::memory_order_relaxed);
    std::memset(memory_ + kHeaderBytes, 0, n_table - kHeaderBytes);
    std::memcpy(static_cast<void*>(h), &wanted, offsetof(HostPoolHeader, generation));
  }
  for (size_t g = 0; g < shape_.n_pages.size(); ++g) {
    for (PageId page = 0; page < shape_.n_pages[g]; ++page) {
      HostPoolSlot* s = slot(static_cast<int>(g), page);
      if (s->state.load(std::memory_order_relaxed) != kSealed) s->state.store(kFree, std::memory_order_release);
    }
  }
  return ok_status();
}

Result<std::unique_ptr<HostPool>> HostPool::open_reader(int fd, const HostPoolShape& own) {
  CHECK_ASSIGN(uint8_t* head, map(fd, kHeaderBytes, PROT_READ));
  HostPoolHeader h{};
  std::memcpy(static_cast<void*>(&h), head, offsetof(HostPoolHeader, generation));
  munmap(head, kHeaderBytes);
  if (h.magic != kMagic) return data_loss("lent pool: no pool is there (yet)");
  if (own.fingerprint != 0 && h.fingerprint != own.fingerprint)
    return data_loss("lent pool: its owner serves another model or another build computes its K/V");
  if (h.page_size != static_cast<uint32_t>(own.page_size) || h.n_groups != own.page_bytes.size())
    return data_loss(fmt::format("lent pool: pages of {} tokens in {} KV groups, this worker has {} in {}", h.page_size,
                                 h.n_groups, own.page_size, own.page_bytes.size()));
  HostPoolShape shape = own;
  shape.n_pages.assign(h.n_pages, h.n_pages + h.n_groups);
  for (size_t g = 0; g < own.page_bytes.size(); ++g) {
    if (h.page_bytes[g] != own.page_bytes[g])
      return data_loss(fmt::format("lent pool: group {} has pages of {} bytes, this worker's have {}", g, h.page_bytes[g],
                                   own.page_bytes[g]));
  }
  CHECK_ASSIGN(const int64_t n_bytes, bytes_needed(shape));
  CHECK_ASSIGN(uint8_t* memory, map(fd, static_cast<size_t>(n_bytes), PROT_READ));
  return std::unique_ptr<HostPool>(new HostPool(std::move(shape), memory, static_cast<size_t>(n_bytes)));
}

// Slices are handed out one by one: a thread that is kept waiting holds nobody up.
Status HostPool::touch(int n_threads, const std::atomic<bool>& stop, const std::function<void(float)>& on_progress) {
  constexpr size_t kSlice = 2u << 20;  // a millisecond: others' page faults and mappings wait for it
  std::atomic<size_t> next{0};
  std::atomic<int> fault{0};
  std::atomic<size_t> fault_at{0};
  auto commit_slices = [&](bool reports) {
    for (size_t at; !stop.load(std::memory_order_relaxed) && fault.load(std::memory_order_relaxed) == 0 &&
                    (at = next.fetch_add(kSlice)) < n_bytes_;) {
      while (madvise(memory_ + at, std::min(kSlice, n_bytes_ - at), MADV_POPULATE_WRITE) != 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        fault_at.store(at, std::memory_order_relaxed);
        fault.store(errno, std::memory_order_release);
        return;
      }
      if (reports && on_progress) on_progress(static_cast<float>(at) / static_cast<float>(n_bytes_));
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < n_threads; ++i) others.emplace_back(commit_slices, false);
  commit_slices(true);
  for (std::thread& t : others) t.join();
  if (stop.load(std::memory_order_relaxed)) return ok_status();
  if (const int err = fault.load(std::memory_order_acquire); err != 0 && err != EINVAL)  // EINVAL: an old kernel cannot
    return exhausted(fmt::format("no memory for the host pool: {} of {} bytes are there: {}", fault_at.load(), n_bytes_,
                                 std::strerror(err)));
  header()->is_committed.store(1, std::memory_order_release);
  return ok_status();
}

bool HostPool::is_committed() const { return header()->is_committed.load(std::memory_order_acquire) == 1; }

std::string HostPool::name_of(int group, PageId page) const { return fmt::format("lent page {} of group {}", page, group); }

Status HostPool::copy_lent(uint64_t owner, int group, PageId page, uint32_t serial, uint8_t* to) const {
  if (group < 0 || static_cast<size_t>(group) >= shape_.n_pages.size())
    return invalid_argument(fmt::format("lent page: group must be 0 to {}, got {}", shape_.n_pages.size() - 1, group));
  const int n_pages = shape_.n_pages[static_cast<size_t>(group)];
  if (page < 0 || page >= n_pages)
    return invalid_argument(fmt::format("lent page of group {}: index must be 0 to {}, got {}", group, n_pages - 1, page));
  const HostPoolSlot& s = *slot(group, page);
  const size_t n_bytes = static_cast<size_t>(shape_.page_bytes[static_cast<size_t>(group)]);
  uint32_t state = kFree;
  auto still_lent = [&]() -> Status {
    if (generation() != owner)
      return unavailable(fmt::format("{}: its owner, generation {}, is gone; the pool is generation {}'s",
                                     name_of(group, page), owner, generation()));
    state = s.state.load(std::memory_order_acquire);
    if (state != kFilling && state != kSealed) return unavailable(name_of(group, page) + " was freed by its owner");
    if (uint32_t now = s.serial.load(std::memory_order_acquire); now != serial)
      return unavailable(fmt::format("{}: lent as number {}, it is number {} now", name_of(group, page), serial, now));
    return ok_status();
  };
  CHECK_OK(still_lent());
  const uint64_t key = s.key, checksum = s.page_checksum;
  const bool was_sealed = state == kSealed;
  std::memcpy(to, page_memory(group, page), n_bytes);
  std::atomic_thread_fence(std::memory_order_acquire);
  CHECK_OK(still_lent());
  if (was_sealed && state == kSealed && XXH3_64bits_withSeed(to, n_bytes, key) != checksum)
    return data_loss(name_of(group, page) + ": its content does not fit its checksum");
  return ok_status();
}

void HostPool::on_taken(int group, PageId page) {
  HostPoolSlot* s = slot(group, page);
  s->state.store(kFilling, std::memory_order_relaxed);
  s->serial.store(s->serial.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  s->generation = header()->generation.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before any store to the page
}

void HostPool::on_freed(int group, PageId page) { slot(group, page)->state.store(kFree, std::memory_order_release); }
void HostPool::on_unsealed(int group, PageId page) { slot(group, page)->state.store(kFilling, std::memory_order_release); }

void HostPool::on_sealed(int group, PageId page, const SealedBlock& block) {
  HostPoolSlot* s = slot(group, page);
  s->key = block.key, s->entry_serial = block.serial, s->parent = block.parent;
  s->index = static_cast<uint32_t>(block.index);
  s->n_tokens = static_cast<uint32_t>(block.tokens.size());
  std::memset(s->tokens, 0, sizeof s->tokens);
  std::copy_n(block.tokens.begin(), std::min(block.tokens.size(), kMaxPageTokens), s->tokens);
  s->page_checksum = page_checksum(group, page, block.key);
  s->checksum = slot_checksum(*s);
  s->state.store(kSealed, std::memory_order_release);
}

uint32_t HostPool::serial(int group, PageId page) const { return slot(group, page)->serial.load(std::memory_order_relaxed); }

uint64_t HostPool::page_checksum(int group, PageId page, uint64_t key) const {
  return XXH3_64bits_withSeed(page_memory(group, page), static_cast<size_t>(shape_.page_bytes[static_cast<size_t>(group)]), key);
}

bool HostPool::is_sound(const HostPoolSlot& s) const {
  if (s.checksum != slot_checksum(s) || s.n_tokens != static_cast<uint32_t>(shape_.page_size) || s.index > INT32_MAX / 2)
    return false;
  return std::all_of(s.tokens, s.tokens + s.n_tokens, [&](int32_t t) { return t >= 0 && t < shape_.vocab_size; });
}

std::vector<SealedPage> HostPool::sealed_pages() {
  std::vector<SealedPage> sealed;
  for (int g = 0; g < static_cast<int>(shape_.n_pages.size()); ++g) {
    for (PageId page = 0; page < shape_.n_pages[static_cast<size_t>(g)]; ++page) {
      HostPoolSlot* s = slot(g, page);
      if (s->state.load(std::memory_order_relaxed) != kSealed) continue;
      if (!is_sound(*s)) {
        s->state.store(kFree, std::memory_order_release);
        continue;
      }
      s->generation = header()->generation.load(std::memory_order_relaxed);
      sealed.push_back({g, page, s->key, s->entry_serial, s->parent, static_cast<int>(s->index),
                        std::vector<int32_t>(s->tokens, s->tokens + s->n_tokens)});
    }
  }
  return sealed;
}

bool HostPool::verify(int group, PageId page) {
  const HostPoolSlot* s = slot(group, page);
  return is_sound(*s) && page_checksum(group, page, s->key) == s->page_checksum;
}

}  // namespace tandem
