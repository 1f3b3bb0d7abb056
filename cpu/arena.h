// Memory straight from the kernel for things that live as long as the backend: packed weights, KV pools,
// scratch. RAII; movable; confined to one owner.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace tandem {

class Arena {
 public:
  Arena() = default;
  // `n_bytes` zeroed bytes, every page touched (no fault and no surprise later), in huge pages where the
  // kernel gives them. kExhausted names `purpose` and the size.
  static Result<Arena> allocate(size_t n_bytes, const std::string& purpose);
  // The same without touching: pages come as they are used, or by touch().
  static Result<Arena> reserve(size_t n_bytes, const std::string& purpose);
  // `n_bytes` (> 0) of a file from `offset` on (a multiple of 2 MiB), read-only and shared with whoever maps it too. All of it is read here,
  // so that a bad disk or a file cut short is an error and not a fault (before Linux 5.14: as they are used).
  // In huge pages where kernel and file system keep the file in such (large folios; else README.md).
  static Result<Arena> map_file(int fd, size_t n_bytes, size_t offset = 0);
  // Maps bytes [offset, offset + n_bytes) of a file over the memory at `data`, which must hold the same bytes: other
  // threads may be reading them meanwhile. data and offset: multiples of 2 MiB. The file's pages are read first; where
  // they cannot be mapped in huge pages and `only_if_huge`, everything stays as it was: kUnavailable.
  static Status replace_by_file(const uint8_t* data, size_t n_bytes, int fd, size_t offset, bool only_if_huge);
  // The other way round: a private copy of what is mapped at `data`, in huge pages where the kernel gives them.
  // kCancelled: `stop` was set; kExhausted: no memory; what was moved by then stays moved.
  static Status replace_by_copy(const uint8_t* data, size_t n_bytes, const std::atomic<bool>& stop);
  bool is_huge() const { return is_huge_; }  // map_file: most of it is mapped in huge pages
  // Touches the pages of bytes [begin, end), cut at size(). Contents stay, so another thread may be using the
  // memory. 0 or an errno; EINVAL: this kernel cannot (before 5.14), pages come as they are used.
  int touch(size_t begin, size_t end);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();
  uint8_t* data() const { return data_; }  // aligned to a page
  size_t size() const { return size_; }

 private:
  static Result<Arena> map(int fd, size_t n_bytes, size_t offset);
  void cut(size_t n_bytes);
  Status put_in_place_of(const uint8_t* data);

  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  bool is_huge_ = false;
};

}  // namespace tandem
