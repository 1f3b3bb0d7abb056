// String operations that methods and filters share. Every byte keeps its provenance.
#include <cstring>
#include <unordered_set>

#include "jinja/builtins.h"
#include "jinja/unicode.h"

namespace tandem::jinja {
namespace {

// Set of the characters to strip; null chars means white space.
class CharSet {
 public:
  explicit CharSet(const Text* chars) : is_space_(chars == nullptr) {
    if (chars == nullptr) return;
    for (size_t at = 0, length = 0; at < chars->bytes.size(); at += length) {
      set_.insert(decode(chars->bytes, at, &length));
    }
  }
  bool has(uint32_t c) const { return is_space_ ? is_space(c) : set_.count(c) > 0; }

 private:
  bool is_space_;
  std::unordered_set<uint32_t> set_;
};

size_t previous(std::string_view bytes, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<unsigned char>(bytes[at]) & 0xC0) == 0x80) --at;
  size_t length = 0;
  decode(bytes, at, &length);
  return at + length == end ? at : end - 1;
}

}  // namespace

size_t find_bytes(std::string_view haystack, std::string_view needle, size_t from) {
  if (from > haystack.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  if (needle.size() > haystack.size() - from) return std::string_view::npos;
  // memmem is linear; std::string_view::find is not.
  const void* found = memmem(haystack.data() + from, haystack.size() - from, needle.data(), needle.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - haystack.data());
}

TextPtr strip_text(const Text& text, const Text* chars, bool left, bool right, Budget& budget) {
  if (chars != nullptr) budget.charge(static_cast<int64_t>(chars->bytes.size()));
  const CharSet set(chars);
  const std::string_view bytes = text.bytes;
  size_t begin = 0;
  size_t end = bytes.size();
  for (size_t length = 0; left && begin < end; begin += length) {
    if (!set.has(decode(bytes, begin, &length))) break;
  }
  while (right && end > begin) {
    const size_t at = previous(bytes, end);
    size_t length = 0;
    if (!set.has(decode(bytes, at, &length))) break;
    end = at;
  }
  return sub_text(text, begin, end, budget);
}

TextPtr replace_text(const Text& text, const Text& from, const Text& to, int64_t count, Budget& budget) {
  TextBuilder out(budget);
  const std::string_view bytes = text.bytes;
  size_t at = 0;
  if (from.bytes.empty()) {  // between all characters, and at both ends
    for (size_t length = 0; at < bytes.size() && count != 0; at += length, --count) {
      out.append(to);
      decode(bytes, at, &length);
      out.append(text, at, at + length);
      budget.charge(1);
    }
    if (count != 0) {
      out.append(to);
    } else {
      out.append(text, at, bytes.size());
    }
    return out.finish();
  }
  for (size_t hit = 0; count != 0 && (hit = find_bytes(bytes, from.bytes, at)) != std::string_view::npos; --count) {
    out.append(text, at, hit);
    out.append(to);
    at = hit + from.bytes.size();
    budget.charge(1);
  }
  out.append(text, at, bytes.size());
  return out.finish();
}

TextPtr escape_html(const Text& text, Budget& budget) {
  budget.charge_characters(text.bytes.size());
  TextBuilder out(budget);
  SpanCursor spans(text);
  for (size_t at = 0; at < text.bytes.size(); ++at) {
    const char c = text.bytes[at];
    const bool input = spans.from_input(at);
    if (c == '&') out.append("&amp;", input);
    else if (c == '<') out.append("&lt;", input);
    else if (c == '>') out.append("&gt;", input);
    else if (c == '\'') out.append("&#39;", input);
    else if (c == '"') out.append("&#34;", input);
    else out.append(std::string_view(&c, 1), input);
  }
  return out.finish();
}

TextPtr map_case(const Text& text, const char* how, Budget& budget) {
  budget.charge_characters(text.bytes.size());
  TextBuilder out(budget);
  SpanCursor spans(text);
  const std::string_view mode = how;
  bool in_word = false;
  for (size_t at = 0, length = 0; at < text.bytes.size(); at += length) {
    const uint32_t c = decode(text.bytes, at, &length);
    const bool cased = is_upper(c) || is_lower(c) || is_title(c);
    std::string mapped;
    if (mode == "upper" || (mode == "swapcase" && is_lower(c))) {
      mapped = to_upper(c);
    } else if (mode == "lower" || mode == "swapcase") {
      mapped = to_lower(c);
    } else if (mode == "capitalize") {
      mapped = at == 0 ? to_title(c) : to_lower(c);
    } else {  // title: the first cased character after an uncased one
      mapped = in_word ? to_lower(c) : to_title(c);
    }
    in_word = cased;
    out.append(mapped, spans.from_input(at));
  }
  return out.finish();
}

TextPtr join_texts(const std::vector<Value>& items, const Text& separator, Budget& budget) {
  TextBuilder out(budget);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(*to_text(items[i], budget));
    budget.charge(1);
  }
  return out.finish();
}

}  // namespace tandem::jinja
