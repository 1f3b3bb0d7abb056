// tojson as transformers defines it: Python's json.dumps with ensure_ascii=False.
#include <algorithm>
#include <cmath>

#include "jinja/builtins.h"
#include "jinja/unicode.h"

namespace tandem::jinja {
namespace {

struct JsonStyle {
  bool ascii = false, sorts = false, has_indent = false;
  std::string indent, item_separator = ", ", key_separator = ": ";
};

class JsonWriter {
 public:
  JsonWriter(TextBuilder& out, const JsonStyle& style) : out_(out), style_(style) {}

  void write(const Value& value, int level) {
    out_.budget().charge(1);
    switch (value.kind()) {
      case Kind::kNone: out_.append("null"); return;
      case Kind::kBool: out_.append(value.as_int() ? "true" : "false"); return;
      case Kind::kInt: out_.append(std::to_string(value.as_int())); return;
      case Kind::kFloat: out_.append(number(value.as_real())); return;
      case Kind::kString: write_string(value.as_text()); return;
      case Kind::kList:
      case Kind::kTuple: write_list(value.as_sequence().items, level); return;
      case Kind::kDict: write_dict(value.as_dict(), level); return;
      default: fail_type(std::string("Object of type ") + type_name(value) + " is not JSON serializable");
    }
  }

 private:
  static std::string number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
    return float_repr(d);
  }

  void newline(int level) {
    if (!style_.has_indent) return;
    out_.append("\n");
    for (int i = 0; i < level; ++i) out_.append(style_.indent);
  }

  void write_list(const std::vector<Value>& items, int level) {
    if (items.empty()) return out_.append("[]");
    out_.append("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      newline(level + 1);
      write(items[i], level + 1);
    }
    newline(level);
    out_.append("]");
  }

  void write_key(const Value& key) {
    if (key.is(Kind::kString)) return write_string(key.as_text());
    if (!key.is_number() && !key.is(Kind::kNone)) {
      fail_type(std::string("keys must be str, int, float, bool or None, not ") + type_name(key));
    }
    out_.append("\"");
    write(key, 0);
    out_.append("\"");
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.items.empty()) return out_.append("{}");
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sorts) {
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return less(a->first, b->first, out_.budget()); });
    }
    out_.append("{");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      newline(level + 1);
      write_key(items[i]->first);
      out_.append(style_.key_separator);
      write(items[i]->second, level + 1);
    }
    newline(level);
    out_.append("}");
  }

  static std::string hex_escape(uint32_t unit) {
    std::string out = "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out.push_back("0123456789abcdef"[unit >> shift & 0xF]);
    return out;
  }

  std::string escaped(uint32_t c) const {
    if (c == '"') return "\\\"";
    if (c == '\\') return "\\\\";
    if (c == '\n') return "\\n";
    if (c == '\r') return "\\r";
    if (c == '\t') return "\\t";
    if (c == '\b') return "\\b";
    if (c == '\f') return "\\f";
    if (c < 0x20 || (style_.ascii && c >= 0x7F && c < 0x10000 && c != 0x7F)) return hex_escape(c);
    if (style_.ascii && c >= 0x10000) {
      return hex_escape(0xD800 + ((c - 0x10000) >> 10)) + hex_escape(0xDC00 + ((c - 0x10000) & 0x3FF));
    }
    std::string out;
    append_utf8(&out, c);
    return out;
  }

  void write_string(const Text& text) {
    out_.budget().charge_characters(text.bytes.size());
    out_.append("\"");
    SpanCursor spans(text);
    for (size_t at = 0, length = 0; at < text.bytes.size(); at += length) {
      const uint32_t c = decode(text.bytes, at, &length);
      out_.append(escaped(c), spans.from_input(at));
    }
    out_.append("\"");
  }

  TextBuilder& out_;
  const JsonStyle& style_;
};

}  // namespace

// Parameters: value, ensure_ascii, indent, separators, sort_keys.
TextPtr to_json(const Value& value, const Params& params, Budget& budget) {
  JsonStyle style;
  style.ascii = params.flag(1, false);
  style.sorts = params.flag(4, false);
  if (params.has(2) && !params.at(2).is(Kind::kNone)) {
    style.has_indent = true;
    style.item_separator = ",";
    if (params.at(2).is(Kind::kString)) {
      style.indent = params.text(2).bytes;
    } else {
      style.indent = std::string(static_cast<size_t>(std::clamp<int64_t>(params.integer(2, 0), 0, 100)), ' ');
    }
  }
  if (params.has(3) && !params.at(3).is(Kind::kNone)) {
    const std::vector<Value> pair = iterate(params.at(3), budget);
    if (pair.size() != 2 || !pair[0].is(Kind::kString) || !pair[1].is(Kind::kString)) {
      fail_type("tojson() separators must be two strings");
    }
    style.item_separator = pair[0].as_text().bytes;
    style.key_separator = pair[1].as_text().bytes;
  }
  TextBuilder out(budget);
  JsonWriter(out, style).write(value, 0);
  return out.finish();
}

}  // namespace tandem::jinja
