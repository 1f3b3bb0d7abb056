#include "cpu/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels answer EINVAL
#endif

namespace tandem {
namespace {

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
  end = end < size_ ? end : size_;
  if (begin >= end) return 0;
  return madvise(data_ + begin, end - begin, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
}

Result<Arena> Arena::reserve(size_t n_bytes, const std::string& purpose) {
  Arena arena;
  if (n_bytes == 0) return arena;
  constexpr size_t kHugePage = 2u << 20;
  if (n_bytes > std::numeric_limits<size_t>::max() / 2) return no_memory(purpose, n_bytes, ENOMEM);
  const size_t unit = n_bytes >= kHugePage ? kHugePage : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size = (n_bytes + unit - 1) / unit * unit;
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return no_memory(purpose, n_bytes, errno);
  arena.data_ = static_cast<uint8_t*>(data);
  arena.size_ = size;
  madvise(data, size, MADV_HUGEPAGE);  // a wish: a kernel without huge pages refuses it
  return arena;
}

Result<Arena> Arena::map_file(int fd, size_t n_bytes) {
  Arena arena;
  void* data = mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return errno_status(errno, "cannot map it");
  arena.data_ = static_cast<uint8_t*>(data);
  arena.size_ = n_bytes;
  int result;
  do {
    result = madvise(data, n_bytes, MADV_POPULATE_READ);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result != 0 && errno != EINVAL && errno != ENOSYS && errno != EPERM)
    return errno_status(errno, "cannot read it");
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace tandem
