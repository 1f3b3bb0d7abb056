#include "api/json_writer.h"

#include <charconv>
#include <cmath>

namespace tandem::api {

size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  auto tail = [&](size_t i, unsigned low, unsigned high) {
    return i < text.size() && at(i) >= low && at(i) <= high;
  };
  unsigned c = at(0);
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c <= 0xDF) return tail(1, 0x80, 0xBF) ? 2 : 0;
  if (c >= 0xE0 && c <= 0xEF) {
    unsigned low = c == 0xE0 ? 0xA0 : 0x80, high = c == 0xED ? 0x9F : 0xBF;
    return tail(1, low, high) && tail(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (c >= 0xF0 && c <= 0xF4) {
    unsigned low = c == 0xF0 ? 0x90 : 0x80, high = c == 0xF4 ? 0x8F : 0xBF;
    return tail(1, low, high) && tail(2, 0x80, 0xBF) && tail(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_bad_run = false;
  while (!text.empty()) {
    size_t n = utf8_length(text);
    if (n == 0) {
      if (!in_bad_run) out += "\xEF\xBF\xBD";
      in_bad_run = true;
      text.remove_prefix(1);
      continue;
    }
    in_bad_run = false;
    out += text.substr(0, n);
    text.remove_prefix(n);
  }
  return out;
}

void JsonWriter::separate() {
  if (needs_comma_) out_ += ',';
  needs_comma_ = true;
}

JsonWriter& JsonWriter::open(char c) {
  separate();
  out_ += c;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char c) {
  out_ += c;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  string(name);
  out_ += ':';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  out_ += '"';
  while (!text.empty()) {
    size_t n = utf8_length(text);
    unsigned char c = static_cast<unsigned char>(text[0]);
    if (n == 0) {
      out_ += "\xEF\xBF\xBD";
      n = 1;
    } else if (n > 1) {
      out_ += text.substr(0, n);
    } else if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += text[0];
    } else if (c == '\n') {
      out_ += "\\n";
    } else if (c < 0x20 || c == 0x7F) {
      constexpr char kHex[] = "0123456789abcdef";
      out_ += "\\u00";
      out_ += kHex[c >> 4];
      out_ += kHex[c & 15];
    } else {
      out_ += text[0];
    }
    text.remove_prefix(n);
  }
  out_ += '"';
  return *this;
}

JsonWriter& JsonWriter::number(double value) {
  if (!std::isfinite(value)) return null();
  char text[32];
  auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return raw({text, static_cast<size_t>(end - text)});
}

JsonWriter& JsonWriter::number(float value) {
  if (!std::isfinite(value)) return null();
  char text[32];
  auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return raw({text, static_cast<size_t>(end - text)});
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  return *this;
}

}  // namespace tandem::api
