#include "jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "jinja/unicode.h"

namespace tandem::jinja {
namespace {

bool is_name_char(char c) {
  const auto u = static_cast<unsigned char>(c);
  return u >= 0x80 || c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }

int hex_value(char c) {
  if (is_digit_char(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// All line ends become \n; one at the very end is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_text();
    push(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw RenderError{message, line_}; }

  bool starts(std::string_view text) const { return source_.compare(at_, text.size(), text) == 0; }
  bool starts_at(size_t at, std::string_view text) const { return source_.compare(at, text.size(), text) == 0; }

  void push(TokenType type, std::string text) {
    Token token;
    token.type = type;
    token.text = std::move(text);
    token.line = line_;
    tokens_.push_back(std::move(token));
  }

  // Moves on to `end`, counting lines.
  void advance(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }

  size_t skip_space(size_t at) const {
    for (size_t length = 0; at < source_.size(); at += length) {
      if (!is_space(decode(source_, at, &length))) break;
    }
    return at;
  }

  // End of source_[begin, end) without trailing white space.
  size_t strip_right(size_t begin, size_t end) const {
    while (end > begin) {
      size_t last = end - 1;
      while (last > begin && (static_cast<unsigned char>(source_[last]) & 0xC0) == 0x80) --last;
      size_t length = 0;
      if (!is_space(decode(source_, last, &length)) || last + length != end) break;
      end = last;
    }
    return end;
  }

  // End of the text before a block or comment under lstrip_blocks.
  size_t strip_line(size_t begin, size_t end) const {
    size_t line = end;
    while (line > begin && source_[line - 1] != '\n') --line;
    if (line == begin && !line_starting_) return end;
    return skip_space(line) >= end ? line : end;
  }

  size_t find_tag(size_t from) const {
    for (size_t at = source_.find('{', from); at != std::string::npos; at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && std::string_view("%{#").find(source_[at + 1]) != std::string_view::npos) {
        return at;
      }
    }
    return std::string::npos;
  }

  void emit_data(size_t begin, size_t end) {
    if (end > begin) push(TokenType::kData, source_.substr(begin, end - begin));
  }

  // Text up to the next tag, then that tag.
  void lex_text() {
    const size_t tag = find_tag(at_);
    if (tag == std::string::npos) {
      emit_data(at_, source_.size());
      advance(source_.size());
      return;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    const bool has_sign = sign == '-' || sign == '+';
    size_t end = tag;
    if (sign == '-') end = strip_right(at_, tag);
    if (!has_sign && kind != '{') end = strip_line(at_, tag);
    emit_data(at_, end);
    advance(tag);
    const size_t inside = tag + (has_sign ? 3 : 2);
    line_starting_ = false;
    if (kind == '#') return lex_comment(inside);
    if (kind == '%' && lex_raw(inside)) return;
    push(kind == '{' ? TokenType::kOutputBegin : TokenType::kBlockBegin, "");
    at_ = inside;
    lex_inside(kind == '{');
  }

  // Skips what a tag's end takes with it; `sign` is the character before the end marker.
  size_t after_block_end(size_t end, char sign) const {
    if (sign == '-') return skip_space(end);
    if (sign != '+' && end < source_.size() && source_[end] == '\n') return end + 1;
    return end;
  }

  void finish_tag(size_t end) {
    line_starting_ = end > 0 && source_[end - 1] == '\n';
    advance(end);
  }

  void lex_comment(size_t inside) {
    const size_t close = source_.find("#}", inside);
    if (close == std::string::npos) fail("Missing end of comment tag");
    finish_tag(after_block_end(close + 2, close > inside ? source_[close - 1] : ' '));
  }

  // {% raw %} … {% endraw %}; false when this block is something else.
  bool lex_raw(size_t inside) {
    size_t at = skip_space(inside);
    if (!starts_at(at, "raw")) return false;
    at = skip_space(at + 3);
    const bool strips = starts_at(at, "-%}");
    if (!strips && !starts_at(at, "%}")) return false;
    at += strips ? 3 : 2;
    if (strips) at = skip_space(at);
    finish_tag(at);
    for (size_t tag = source_.find("{%", at); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      if (end_raw(tag)) return true;
    }
    fail("Missing end of raw directive");
  }

  bool end_raw(size_t tag) {
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    const bool has_sign = sign == '-' || sign == '+';
    size_t at = skip_space(tag + (has_sign ? 3 : 2));
    if (!starts_at(at, "endraw")) return false;
    at = skip_space(at + 6);
    char end_sign = ' ';
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) end_sign = source_[at++];
    if (!starts_at(at, "%}")) return false;
    const size_t data_end = sign == '-' ? strip_right(at_, tag) : has_sign ? tag : strip_line(at_, tag);
    emit_data(at_, data_end);
    finish_tag(after_block_end(at + 2, end_sign));
    return true;
  }

  bool lex_tag_end(bool is_output) {
    const std::string_view close = is_output ? "}}" : "%}";
    const char sign = source_[at_];
    const bool has_sign = sign == '-' || (sign == '+' && !is_output);
    if (!starts_at(at_ + (has_sign ? 1 : 0), close)) return false;
    push(is_output ? TokenType::kOutputEnd : TokenType::kBlockEnd, "");
    const size_t end = at_ + close.size() + (has_sign ? 1 : 0);
    if (is_output) {
      finish_tag(has_sign ? skip_space(end) : end);
    } else {
      finish_tag(after_block_end(end, has_sign ? sign : ' '));
    }
    return true;
  }

  void lex_inside(bool is_output) {
    brackets_.clear();
    while (true) {
      advance(skip_space(at_));
      if (at_ >= source_.size()) return;  // the parser says what is missing
      if (brackets_.empty() && lex_tag_end(is_output)) return;
      const char c = source_[at_];
      if (is_digit_char(c)) {
        lex_number();
      } else if (is_name_char(c)) {
        size_t end = at_;
        while (end < source_.size() && is_name_char(source_[end])) ++end;
        push(TokenType::kName, source_.substr(at_, end - at_));
        at_ = end;
      } else if (c == '"' || c == '\'') {
        lex_string(c);
      } else {
        lex_operator();
      }
    }
  }

  void lex_operator() {
    static constexpr std::string_view kOps[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~",
                                                "[",  "]",  "(",  ")",  "{",  "}",  ">", "<", "=", ".", ":", "|",
                                                ",",  ";"};
    for (const std::string_view op : kOps) {
      if (!starts(op)) continue;
      track_bracket(op[0]);
      push(TokenType::kOp, std::string(op));
      at_ += op.size();
      return;
    }
    size_t length = 0;
    decode(source_, at_, &length);
    fail("unexpected char " + repr_string(std::string_view(source_).substr(at_, length)));
  }

  void track_bracket(char c) {
    if (c == '(') brackets_.push_back(')');
    if (c == '[') brackets_.push_back(']');
    if (c == '{') brackets_.push_back('}');
    if (c != ')' && c != ']' && c != '}') return;
    const std::string found(1, c);
    if (brackets_.empty()) fail("unexpected '" + found + "'");
    if (brackets_.back() != c) fail("unexpected '" + found + "', expected '" + brackets_.back() + "'");
    brackets_.pop_back();
  }

  size_t digits_end(size_t at) const {  // digits with single underscores between them
    while (at < source_.size() && (is_digit_char(source_[at]) ||
                                   (source_[at] == '_' && at + 1 < source_.size() && is_digit_char(source_[at + 1])))) {
      ++at;
    }
    return at;
  }

  void lex_number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    size_t end = digits_end(at_);
    bool is_float = false;
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' && is_digit_char(source_[end + 1])) {
      end = digits_end(end + 1);
      is_float = true;
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < source_.size() && (source_[digits] == '+' || source_[digits] == '-')) ++digits;
      if (digits < source_.size() && is_digit_char(source_[digits])) {
        end = digits_end(digits);
        is_float = true;
      }
    }
    if (!is_float && source_[at_] == '0' && at_ + 1 < source_.size() && lex_radix()) return;
    std::string digits = source_.substr(at_, end - at_);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    push(TokenType::kNumber, digits);
    tokens_.back().number = is_float ? Value::real(std::strtod(digits.c_str(), nullptr)) : parse_int(digits, 10);
    at_ = end;
  }

  bool lex_radix() {
    const char mark = static_cast<char>(source_[at_ + 1] | 0x20);
    const int radix = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (radix == 0) return false;
    std::string digits;
    size_t end = at_ + 2;
    for (; end < source_.size(); ++end) {
      if (source_[end] == '_') continue;
      const int digit = hex_value(source_[end]);
      if (digit < 0 || digit >= radix) break;
      digits.push_back(source_[end]);
    }
    if (digits.empty()) return false;
    push(TokenType::kNumber, digits);
    tokens_.back().number = parse_int(digits, radix);
    at_ = end;
    return true;
  }

  Value parse_int(const std::string& digits, int radix) const {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, radix);
    if (error != std::errc()) fail("integer " + digits + " does not fit in 64 bits");
    return Value::integer(value);
  }

  void lex_string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail(std::string("unexpected char ") + repr_string({&quote, 1}) + ": unterminated string");
    push(TokenType::kString, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
  }

  std::string unescape(std::string_view in) const {
    std::string out;
    out.reserve(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i] == '\\' && i + 1 < in.size()) {
        i = unescape_one(in, i + 1, &out);
      } else {
        out.push_back(in[i]);
      }
    }
    return out;
  }

  // `at`: the character after the backslash. Returns the last position used.
  size_t unescape_one(std::string_view in, size_t at, std::string* out) const {
    static constexpr std::string_view kFrom = "abfnrtv\\'\"";
    static constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
    const char c = in[at];
    if (c == '\n') return at;
    if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
      out->push_back(kTo[i]);
      return at;
    }
    if (c == 'x') return unescape_hex(in, at, 2, out);
    if (c == 'u') return unescape_hex(in, at, 4, out);
    if (c == 'U') return unescape_hex(in, at, 8, out);
    if (c >= '0' && c <= '7') {
      uint32_t value = 0;
      size_t end = at;
      while (end < in.size() && end < at + 3 && in[end] >= '0' && in[end] <= '7') {
        value = value * 8 + static_cast<uint32_t>(in[end++] - '0');
      }
      append_utf8(out, value);
      return end - 1;
    }
    if (c == 'N') fail("string escape \\N{…} is not supported; write the character or \\uXXXX");
    out->push_back('\\');
    out->push_back(c);
    return at;
  }

  size_t unescape_hex(std::string_view in, size_t at, size_t digits, std::string* out) const {
    uint32_t value = 0;
    for (size_t i = 1; i <= digits; ++i) {
      const int digit = at + i < in.size() ? hex_value(in[at + i]) : -1;
      if (digit < 0) fail(std::string("truncated \\") + in[at] + " escape in a string");
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) fail("string escape is not a character");
    append_utf8(out, value);
    return at + digits;
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::string brackets_;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(normalize_newlines(source)).run(); }

}  // namespace tandem::jinja
