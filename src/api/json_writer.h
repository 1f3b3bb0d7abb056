// Writes JSON text front to back: replies and stream chunks, thousands a second. Strings come out as valid
// UTF-8 whatever goes in (invalid bytes become U+FFFD); numbers are always finite. Confined to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::api {

class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& string(std::string_view text);
  JsonWriter& integer(int64_t value) { return raw(std::to_string(value)); }
  JsonWriter& unsigned_integer(uint64_t value) { return raw(std::to_string(value)); }
  JsonWriter& number(double value);  // shortest text that reads back as the same double; not finite: null
  JsonWriter& number(float value);   // the same for float
  JsonWriter& boolean(bool value) { return raw(value ? "true" : "false"); }
  JsonWriter& null() { return raw("null"); }
  JsonWriter& raw(std::string_view json);  // one complete value
  std::string take() { return std::move(out_); }

 private:
  JsonWriter& open(char c);
  JsonWriter& close(char c);
  void separate();
  std::string out_;
  bool needs_comma_ = false;
};

// Copies `text` with each maximal run of invalid bytes replaced by U+FFFD.
std::string valid_utf8(std::string_view text);
// Length of the valid UTF-8 code point at the front of `text`; 0: invalid or cut short. No overlong forms, no
// surrogates, at most U+10FFFF (RFC 3629).
size_t utf8_length(std::string_view text);

}  // namespace tandem::api
