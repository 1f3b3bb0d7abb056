// Strings that remember where their bytes came from, the builder that makes them, and the budget that every
// piece of work is charged to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::jinja {

// Thrown inside this room only; render() and parse() turn it into a Status.
struct RenderError {
  std::string message;
  int line = 0;            // 0: not known yet
  bool is_raised = false;  // raise_exception: the message goes out verbatim
};

struct Budget {
  int64_t max_steps = 0, max_bytes = 0, max_items = 0;
  int max_depth = 0;
  int64_t steps = 0;
  void charge(int64_t n) {
    steps += n;
    if (steps > max_steps) fail_steps();
  }
  void charge_bytes(size_t n) { charge(static_cast<int64_t>(n / 64)); }  // copied or searched
  void charge_characters(size_t n) { charge(static_cast<int64_t>(n / 8)); }  // looked at one by one
  void check_bytes(size_t n) {
    if (n > static_cast<size_t>(max_bytes)) fail_bytes();
  }
  void check_items(size_t n) {
    if (n > static_cast<size_t>(max_items)) fail_items();
  }
  [[noreturn]] void fail_steps() const;
  [[noreturn]] void fail_bytes() const;
  [[noreturn]] void fail_items() const;
};

struct Span {
  size_t begin, end;  // bytes
};

struct Text {
  std::string bytes;
  std::vector<Span> input;  // ascending, disjoint, not touching: bytes that came from input
  int64_t length = 0;       // code points; an invalid byte counts as one
  bool is_markup = false;   // result of `safe` or `escape`: + escapes its other side
  bool is_ascii() const { return length == static_cast<int64_t>(bytes.size()); }
};
using TextPtr = std::shared_ptr<const Text>;

// Walks the input spans of one text from left to right; asking is amortized O(1).
class SpanCursor {
 public:
  explicit SpanCursor(const Text& text) : text_(text) {}
  bool from_input(size_t byte) {  // `byte` must not go down
    while (at_ < text_.input.size() && text_.input[at_].end <= byte) ++at_;
    return at_ < text_.input.size() && text_.input[at_].begin <= byte;
  }

 private:
  const Text& text_;
  size_t at_ = 0;
};

// Builds one Text, charging the budget and refusing more than its max_bytes.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget) : budget_(budget) {}
  void append(std::string_view bytes, bool from_input = false);
  void append(const Text& text) { append(text, 0, text.bytes.size()); }
  void append(const Text& text, size_t begin, size_t end);  // byte range
  void append_repeated(const Text& text, int64_t times);
  size_t size() const { return text_.bytes.size(); }
  TextPtr finish();
  Text take();  // without counting code points
  Budget& budget() { return budget_; }

 private:
  void add_span(size_t begin, size_t end);
  Budget& budget_;
  Text text_;
  size_t charged_ = 0;
};

TextPtr make_text(std::string_view bytes, bool from_input = false);
// Part of a text by byte offsets.
TextPtr sub_text(const Text& text, size_t begin, size_t end, Budget& budget);
// Byte offset of code point number `index` (0 .. length).
size_t byte_offset(const Text& text, int64_t index, Budget& budget);

}  // namespace tandem::jinja
