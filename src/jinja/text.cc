#include "jinja/text.h"

#include <algorithm>

#include "jinja/unicode.h"

namespace tandem::jinja {

void Budget::fail_steps() const {
  throw RenderError{"the template takes more than max_steps = " + std::to_string(max_steps) + " steps"};
}

void Budget::fail_bytes() const {
  throw RenderError{"a string or the output would exceed max_output_bytes = " + std::to_string(max_bytes)};
}

void Budget::fail_items() const {
  throw RenderError{"a list would exceed max_items = " + std::to_string(max_items)};
}

void TextBuilder::add_span(size_t begin, size_t end) {
  if (begin == end) return;
  auto& input = text_.input;
  if (!input.empty() && input.back().end == begin) {
    input.back().end = end;
  } else {
    input.push_back({begin, end});
  }
}

void TextBuilder::append(std::string_view bytes, bool from_input) {
  const size_t begin = text_.bytes.size();
  budget_.check_bytes(begin + bytes.size());
  text_.bytes.append(bytes);
  if (from_input) add_span(begin, text_.bytes.size());
  if (text_.bytes.size() - charged_ >= 4096) {
    budget_.charge_bytes(text_.bytes.size() - charged_);
    charged_ = text_.bytes.size();
  }
}

void TextBuilder::append(const Text& text, size_t begin, size_t end) {
  const size_t base = text_.bytes.size();
  append(std::string_view(text.bytes).substr(begin, end - begin));
  auto span = std::lower_bound(text.input.begin(), text.input.end(), begin,
                               [](const Span& s, size_t at) { return s.end <= at; });
  int64_t spans = 0;
  for (; span != text.input.end() && span->begin < end; ++span, ++spans) {
    add_span(base + std::max(span->begin, begin) - begin, base + std::min(span->end, end) - begin);
  }
  if (spans > 8) budget_.charge(spans / 8);
}

void TextBuilder::append_repeated(const Text& text, int64_t times) {
  if (times <= 0 || text.bytes.empty()) return;
  if (times > budget_.max_bytes / static_cast<int64_t>(text.bytes.size())) budget_.fail_bytes();
  for (int64_t i = 0; i < times; ++i) append(text);
}

Text TextBuilder::take() {
  budget_.charge_bytes(text_.bytes.size() - charged_);
  charged_ = 0;
  return std::move(text_);
}

TextPtr TextBuilder::finish() {
  auto text = std::make_shared<Text>(take());
  text->length = count_code_points(text->bytes);
  return text;
}

TextPtr make_text(std::string_view bytes, bool from_input) {
  auto text = std::make_shared<Text>();
  text->bytes = bytes;
  if (from_input && !bytes.empty()) text->input.push_back({0, bytes.size()});
  text->length = count_code_points(bytes);
  return text;
}

TextPtr sub_text(const Text& text, size_t begin, size_t end, Budget& budget) {
  TextBuilder out(budget);
  out.append(text, begin, std::max(begin, end));
  return out.finish();
}

size_t byte_offset(const Text& text, int64_t index, Budget& budget) {
  if (text.is_ascii()) return static_cast<size_t>(index);
  if (index >= text.length) return text.bytes.size();
  size_t at = 0;
  for (size_t length = 0; index > 0; --index, at += length) decode(text.bytes, at, &length);
  budget.charge_bytes(at);
  return at;
}

}  // namespace tandem::jinja
