// UTF-8 as Unicode defines it (no overlong forms, no surrogates, nothing past U+10FFFF).
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

enum class Utf8Kind { kValid, kInvalid, kIncomplete };
struct Utf8Step {
  Utf8Kind kind = Utf8Kind::kInvalid;
  int length =
      1;  // bytes of the code point, of the maximal ill-formed part, or of the unfinished beginning
};
// What stands at the beginning of `text`, which must not be empty.
Utf8Step utf8_step(std::string_view text);

// Offset of the first byte that is not part of valid UTF-8; text.size() when all of it is valid.
size_t utf8_valid_prefix(std::string_view text);

// Bytes of the code point that begins with `lead`; only for text known to be valid.
inline int utf8_length(uint8_t lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}
// Code point of valid text at `p`.
uint32_t utf8_decode(const char* p);
void utf8_append(uint32_t code_point, std::string* out);

// Moves the whole code points of *pending to *out, each maximal ill-formed part as U+FFFD; what
// could still become a code point stays in *pending.
void utf8_drain(std::string* pending, std::string* out);

}  // namespace tandem
