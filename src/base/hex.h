// Bytes as lower-case hexadecimal digits, two a byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tandem {

inline std::string hex_of(std::span<const unsigned char> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const unsigned char b : bytes) hex += kDigits[b >> 4], hex += kDigits[b & 15];
  return hex;
}

}  // namespace tandem
