#include "cpu/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/process_memory.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels answer EINVAL
#endif

namespace tandem {
namespace {

constexpr size_t kHugePage = 2u << 20;
constexpr size_t kSlice = 8 * kHugePage;  // what is held twice while memory is exchanged

// Address space, no memory yet. A huge page is only mapped where its address is a multiple of its size.
uint8_t* reserve_aligned(size_t size, int protection) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t kept = (size + page - 1) / page * page;
  void* range = mmap(nullptr, kept + kHugePage, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (range == MAP_FAILED) return nullptr;
  auto* begin = static_cast<uint8_t*>(range);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + kept, kHugePage - before);
  return begin + before;
}

int64_t file_huge_bytes() {
  const auto memory = read_process_memory();
  return memory.ok() ? memory->file_huge_bytes : 0;
}

// Writes every page. Prefaulting in one call reports a lack of memory instead of ending the process.
int touch_all(uint8_t* data, size_t size) {
  int result;
  do {
    result = madvise(data, size, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS && errno != EPERM) return errno;
  const size_t step = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t i = 0; i < size; i += step) *static_cast<volatile uint8_t*>(data + i) = 0;
  return 0;
}

Status no_memory(const std::string& purpose, size_t n_bytes, int err) {
  return exhausted(fmt::format("no memory for {}: {} bytes ({:.1f} MiB): {}; ask for less (pool, context, "
                               "batch) or free memory",
                               purpose, n_bytes, static_cast<double>(n_bytes) / 1048576.0,
                               std::strerror(err)));
}

}  // namespace

Result<Arena> Arena::allocate(size_t n_bytes, const std::string& purpose) {
  CHECK_ASSIGN(Arena arena, reserve(n_bytes, purpose));
  if (arena.size_ == 0) return arena;
  if (const int err = touch_all(arena.data_, arena.size_); err != 0) return no_memory(purpose, n_bytes, err);
  return arena;
}

int Arena::touch(size_t begin, size_t end) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  begin = begin / page * page;
  end = end < size_ ? end : size_;
  if (begin >= end) return 0;
  return madvise(data_ + begin, end - begin, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
}

Result<Arena> Arena::reserve(size_t n_bytes, const std::string& purpose) {
  Arena arena;
  if (n_bytes == 0) return arena;
  if (n_bytes > std::numeric_limits<size_t>::max() / 2) return no_memory(purpose, n_bytes, ENOMEM);
  const size_t unit = n_bytes >= kHugePage ? kHugePage : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size = (n_bytes + unit - 1) / unit * unit;
  uint8_t* data = reserve_aligned(size, PROT_READ | PROT_WRITE);
  if (data == nullptr) return no_memory(purpose, n_bytes, errno);
  arena.data_ = data;
  arena.size_ = size;
  madvise(data, size, MADV_HUGEPAGE);  // a wish: a kernel without huge pages refuses it
  return arena;
}

Result<Arena> Arena::map(int fd, size_t n_bytes, size_t offset) {
  Arena arena;
  uint8_t* range = reserve_aligned(n_bytes, PROT_NONE);
  if (range == nullptr) return errno_status(errno, "cannot map it");
  arena.data_ = range;
  arena.size_ = n_bytes;
  void* data = mmap(range, n_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) return errno_status(errno, "cannot map it");
  // Before the pages come: a fault in such a range reads a huge page at once. Read bandwidth behind 4 KiB pages was
  // half of that in a virtual machine (tests/bench/README.md).
  madvise(data, n_bytes, MADV_HUGEPAGE);
  int result;
  do {
    result = madvise(data, n_bytes, MADV_POPULATE_READ);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result != 0 && errno != EINVAL && errno != ENOSYS && errno != EPERM)
    return errno_status(errno, "cannot read it");
  return arena;
}

Result<Arena> Arena::map_file(int fd, size_t n_bytes, size_t offset) {
  const int64_t huge_before = file_huge_bytes();
  CHECK_ASSIGN(Arena arena, map(fd, n_bytes, offset));
  const auto is_huge = [&] { return file_huge_bytes() - huge_before >= static_cast<int64_t>(n_bytes / 2); };
  arena.is_huge_ = is_huge();
  if (!arena.is_huge_ && madvise(arena.data_, n_bytes, MADV_COLLAPSE) == 0)  // cached in small pages; most kernels refuse
    arena.is_huge_ = is_huge();
  return arena;
}

// Both in slices: two copies of everything at once would be a peak that nobody planned.
Status Arena::replace_by_file(const uint8_t* data, size_t n_bytes, int fd, size_t offset, bool only_if_huge) {
  for (size_t at = 0; at < n_bytes; at += kSlice) {
    const size_t size = std::min(kSlice, n_bytes - at);
    CHECK_ASSIGN(Arena slice, at == 0 ? map_file(fd, size, offset) : map(fd, size, offset + at));
    if (only_if_huge && at == 0 && !slice.is_huge()) return unavailable("the file is not kept in huge pages");
    CHECK_OK(slice.put_in_place_of(data + at));
  }
  return ok_status();
}

Status Arena::replace_by_copy(const uint8_t* data, size_t n_bytes, const std::atomic<bool>& stop) {
  for (size_t at = 0; at < n_bytes; at += kSlice) {
    if (stop) return {StatusCode::kCancelled, "stopped while copying packed weights"};
    const size_t size = std::min(kSlice, n_bytes - at);
    CHECK_ASSIGN(Arena slice, allocate(size, "a slice of packed weights"));
    std::memcpy(slice.data_, data + at, size);
    slice.cut(size);  // allocate() rounds up to huge pages: what follows data + at + size is somebody else's
    CHECK_OK(slice.put_in_place_of(data + at));
  }
  return ok_status();
}

void Arena::cut(size_t n_bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), kept = (n_bytes + page - 1) / page * page;
  if (kept < size_) munmap(data_ + kept, size_ - kept);
  size_ = n_bytes;
}

// One step for everybody else: a thread that touches the range meanwhile waits in its page fault.
Status Arena::put_in_place_of(const uint8_t* data) {
  void* there = const_cast<uint8_t*>(data);
  if (mremap(data_, size_, size_, MREMAP_MAYMOVE | MREMAP_FIXED, there) == MAP_FAILED)
    return errno_status(errno, "cannot exchange the memory of packed weights");
  data_ = nullptr;
  return ok_status();
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      is_huge_(std::exchange(other.is_huge_, false)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(is_huge_, other.is_huge_);
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace tandem
