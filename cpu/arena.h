// Memory straight from the kernel for things that live as long as the backend: packed weights, KV pools,
// scratch. RAII; movable; confined to one owner.
#pragma once

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
  // The first `n_bytes` (> 0) of a file, read-only and shared with whoever maps it too. All of it is read here,
  // so that a bad disk or a file cut short is an error and not a fault (before Linux 5.14: as they are used).
  static Result<Arena> map_file(int fd, size_t n_bytes);
  // Touches the pages of bytes [begin, end), cut at size(). Contents stay, so another thread may be using the
  // memory. 0 or an errno; EINVAL: this kernel cannot (before 5.14), pages come as they are used.
  int touch(size_t begin, size_t end);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();
  uint8_t* data() const { return data_; }  // aligned to a page
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tandem
