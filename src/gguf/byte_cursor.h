// Reads little-endian values from foreign bytes, each once and never past the end. What a short
// read means is for the caller to say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tandem {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF is read in place");

class ByteCursor {
 public:
  ByteCursor(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  size_t offset() const { return offset_; }
  size_t remaining() const { return size_ - offset_; }
  const uint8_t* position() const { return data_ + offset_; }

  template <typename T>
  [[nodiscard]] bool read(T* out) {
    if (remaining() < sizeof(T)) return false;
    std::memcpy(out, position(), sizeof(T));
    offset_ += sizeof(T);
    return true;
  }
  [[nodiscard]] bool skip(uint64_t n) {
    if (n > remaining()) return false;
    offset_ += static_cast<size_t>(n);
    return true;
  }
  // A 64-bit length and so many bytes. On failure *length holds what was asked for, if that was
  // readable.
  [[nodiscard]] bool read_string(std::string_view* out, uint64_t* length) {
    *length = 0;
    if (!read(length)) return false;
    const char* begin = reinterpret_cast<const char*>(position());
    if (!skip(*length)) return false;
    *out = std::string_view(begin, static_cast<size_t>(*length));
    return true;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t offset_ = 0;
};

}  // namespace tandem
