// Code points and the character properties that Python's string methods use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::jinja {

// Code point at `at` (< bytes.size()) and its length in bytes. An invalid byte is itself, as 0xDC00 + byte
// (Python's surrogateescape), length 1.
uint32_t decode(std::string_view bytes, size_t at, size_t* length);
void append_utf8(std::string* out, uint32_t code_point);
int64_t count_code_points(std::string_view bytes);

bool is_space(uint32_t c);
bool is_alpha(uint32_t c);
bool is_digit(uint32_t c);     // str.isdigit
bool is_decimal(uint32_t c);
bool is_numeric(uint32_t c);
bool is_upper(uint32_t c);
bool is_lower(uint32_t c);
bool is_title(uint32_t c);
bool is_printable(uint32_t c); // repr shows it as it is
// UTF-8 of the case-mapped character (may be several code points: "ß" -> "SS").
std::string to_upper(uint32_t c);
std::string to_lower(uint32_t c);
std::string to_title(uint32_t c);

}  // namespace tandem::jinja
