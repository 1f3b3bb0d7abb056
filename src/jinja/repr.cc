// str() and repr() of values.
#include <charconv>
#include <cmath>

#include "jinja/unicode.h"
#include "jinja/value.h"

namespace tandem::jinja {
namespace {

void append_hex(std::string* out, uint32_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out->push_back("0123456789abcdef"[value >> shift & 0xF]);
  }
}

std::string repr_char(uint32_t c, char quote) {
  std::string out;
  if (c == static_cast<uint32_t>(quote) || c == '\\') return {'\\', static_cast<char>(c)};
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (is_printable(c)) {
    append_utf8(&out, c);
    return out;
  }
  if (c < 0x100) {
    out = "\\x";
    append_hex(&out, c, 2);
  } else if (c < 0x10000) {
    out = "\\u";
    append_hex(&out, c, 4);
  } else {
    out = "\\U";
    append_hex(&out, c, 8);
  }
  return out;
}

char repr_quote(std::string_view bytes) {
  const bool single = bytes.find('\'') != std::string_view::npos;
  return single && bytes.find('"') == std::string_view::npos ? '"' : '\'';
}

void append_text_repr(const Text& text, TextBuilder& out) {
  out.budget().charge_characters(text.bytes.size());
  const char quote = repr_quote(text.bytes);
  out.append(std::string_view(&quote, 1));
  SpanCursor spans(text);
  for (size_t at = 0, length = 0; at < text.bytes.size(); at += length) {
    const uint32_t c = decode(text.bytes, at, &length);
    out.append(repr_char(c, quote), spans.from_input(at));
  }
  out.append(std::string_view(&quote, 1));
}

void append_items(const std::vector<Value>& items, TextBuilder& out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(items[i], out);
  }
}

void append_dict(const Dict& dict, TextBuilder& out) {
  out.append("{");
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(dict.items[i].first, out);
    out.append(": ");
    append_repr(dict.items[i].second, out);
  }
  out.append("}");
}

void append_sequence(const Value& value, TextBuilder& out) {
  const Sequence& sequence = value.as_sequence();
  switch (value.kind()) {
    case Kind::kTuple:
      out.append("(");
      append_items(sequence.items, out);
      out.append(sequence.items.size() == 1 ? ",)" : ")");
      return;
    case Kind::kRange: out.append(sequence.label); return;
    case Kind::kGenerator: out.append("<generator object>"); return;
    case Kind::kView: out.append(sequence.label + "(["); break;
    default: out.append("["); break;
  }
  append_items(sequence.items, out);
  out.append(value.is(Kind::kView) ? "])" : "]");
}

}  // namespace

std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buffer[40];
  const double size = std::fabs(d);
  const bool fixed = d == 0 || (size >= 1e-4 && size < 1e16);
  const auto format = fixed ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, format).ptr;
  std::string out(buffer, end);
  if (fixed && out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string repr_string(std::string_view bytes) {
  const char quote = repr_quote(bytes);
  std::string out(1, quote);
  for (size_t at = 0, length = 0; at < bytes.size(); at += length) {
    out += repr_char(decode(bytes, at, &length), quote);
  }
  return out + quote;
}

void append_repr(const Value& value, TextBuilder& out) {
  out.budget().charge(1);
  switch (value.kind()) {
    case Kind::kUndefined: out.append("Undefined"); return;
    case Kind::kNone: out.append("None"); return;
    case Kind::kBool: out.append(value.as_int() ? "True" : "False"); return;
    case Kind::kInt: out.append(std::to_string(value.as_int())); return;
    case Kind::kFloat: out.append(float_repr(value.as_real())); return;
    case Kind::kString: append_text_repr(value.as_text(), out); return;
    case Kind::kDict: append_dict(value.as_dict(), out); return;
    case Kind::kNamespace: out.append("<Namespace>"); return;  // may contain itself
    case Kind::kObject: out.append(value.object_as<Callable>()->repr()); return;
    default: append_sequence(value, out); return;
  }
}

TextPtr to_text(const Value& value, Budget& budget) {
  if (value.is(Kind::kString)) return value.text_ptr();
  if (value.is(Kind::kUndefined)) return make_text("");
  TextBuilder out(budget);
  append_repr(value, out);
  return out.finish();
}

}  // namespace tandem::jinja
