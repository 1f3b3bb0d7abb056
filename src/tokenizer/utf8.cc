// UTF-8 checks and repair; table 3-7 of the Unicode standard, spelled out.
#include "tokenizer/utf8.h"

#include <cstring>

namespace tandem {

namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// Continuation bytes that follow `lead` and the range of the first of them. 0 for a byte that leads
// nothing.
int continuation(uint8_t lead, uint8_t* low, uint8_t* high) {
  *low = 0x80;
  *high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) return 1;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if (lead == 0xE0) *low = 0xA0;
    if (lead == 0xED) *high = 0x9F;
    return 2;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
    return 3;
  }
  return 0;
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {Utf8Kind::kValid, 1};
  uint8_t low, high;
  const int n = continuation(lead, &low, &high);
  if (n == 0) return {Utf8Kind::kInvalid, 1};
  for (int i = 1; i <= n; ++i) {
    if (static_cast<size_t>(i) >= text.size()) return {Utf8Kind::kIncomplete, i};
    const auto byte = static_cast<uint8_t>(text[static_cast<size_t>(i)]);
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kValid, n + 1};
}

size_t utf8_valid_prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t word;
    if (i + sizeof word <= text.size()) {  // eight ASCII bytes at once
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & 0x8080808080808080ull) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const Utf8Step step = utf8_step(text.substr(i));
    if (step.kind != Utf8Kind::kValid) return i;
    i += static_cast<size_t>(step.length);
  }
  return i;
}

uint32_t utf8_decode(const char* p) {
  const auto byte = [p](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(p[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return lead;
  if (lead < 0xE0) return (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  if (lead < 0xF0) return (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  return (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

void utf8_append(uint32_t c, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  if (c < 0x10000) return put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)),
      put(0x80 | (c & 0x3F));
}

void utf8_drain(std::string* pending, std::string* out) {
  std::string_view rest = *pending;
  while (!rest.empty()) {
    const size_t valid = utf8_valid_prefix(rest);
    out->append(rest.substr(0, valid));
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Kind::kIncomplete) break;
    out->append(kReplacement);
    rest.remove_prefix(static_cast<size_t>(step.length));
  }
  *pending = std::string(rest);
}

}  // namespace tandem
