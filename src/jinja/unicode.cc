#include "jinja/unicode.h"

#include <utf8proc.h>

namespace tandem::jinja {
namespace {

utf8proc_category_t category(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

std::string one(uint32_t c) {
  std::string out;
  append_utf8(&out, c);
  return out;
}

uint32_t mapped(utf8proc_int32_t (*map)(utf8proc_int32_t), uint32_t c) {
  return static_cast<uint32_t>(map(static_cast<utf8proc_int32_t>(c)));
}

bool is_surrogate(uint32_t c) { return c >= 0xD800 && c < 0xE000; }

}  // namespace

uint32_t decode(std::string_view bytes, size_t at, size_t* length) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[at + i]); };
  const unsigned char lead = byte(0);
  *length = 1;
  if (lead < 0x80) return lead;
  const size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  const uint32_t invalid = 0xDC00u + lead;
  if (lead < 0xC2 || lead > 0xF4 || bytes.size() - at < need) return invalid;
  uint32_t c = lead & (0x7Fu >> need);
  for (size_t i = 1; i < need; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return invalid;
    c = c << 6 | (byte(i) & 0x3Fu);
  }
  const bool overlong = (need == 3 && c < 0x800) || (need == 4 && c < 0x10000);
  if (overlong || c > 0x10FFFF || is_surrogate(c)) return invalid;
  *length = need;
  return c;
}

void append_utf8(std::string* out, uint32_t c) {
  if (c >= 0xDC80 && c < 0xDD00) {  // an invalid byte, as decode() gave it
    out->push_back(static_cast<char>(c - 0xDC00));
  } else if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

int64_t count_code_points(std::string_view bytes) {
  int64_t count = 0;
  for (size_t i = 0, length = 0; i < bytes.size(); i += length, ++count) {
    length = 1;
    if (static_cast<unsigned char>(bytes[i]) >= 0x80) decode(bytes, i, &length);
  }
  return count;
}

bool is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
  const auto kind = category(c);
  return c == 0x85 || kind == UTF8PROC_CATEGORY_ZS || kind == UTF8PROC_CATEGORY_ZL ||
         kind == UTF8PROC_CATEGORY_ZP;
}

bool is_alpha(uint32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

bool is_digit(uint32_t c) {
  if (is_decimal(c)) return true;
  const bool superscript = c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079);
  return superscript || (c >= 0x2080 && c <= 0x2089);
}

bool is_numeric(uint32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_upper(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA; }
bool is_title(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

bool is_printable(uint32_t c) {
  if (c < 0x80) return c >= 0x20 && c != 0x7F;
  const auto kind = category(c);
  const bool other = kind == UTF8PROC_CATEGORY_CN || kind >= UTF8PROC_CATEGORY_CC;
  return !other && !is_space(c);
}

std::string to_upper(uint32_t c) {
  if (c == 0xDF) return "SS";
  return one(mapped(utf8proc_toupper, c));
}

std::string to_lower(uint32_t c) {
  if (c == 0x130) return "i\xCC\x87";
  return one(mapped(utf8proc_tolower, c));
}

std::string to_title(uint32_t c) {
  if (c == 0xDF) return "Ss";
  return one(mapped(utf8proc_totitle, c));
}

}  // namespace tandem::jinja
