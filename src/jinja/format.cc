// `%` formatting and str.format. Text that is inserted keeps its provenance.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/unicode.h"

namespace tandem::jinja {
namespace {

constexpr int64_t kMaxWidth = 10'000;

struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ = or none
  char sign = '-';
  bool zero = false, alternate = false, comma = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

[[noreturn]] void fail_number(char type, const Value& value) {
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  fail_type(std::string("%") + type + " format: a real number is required, not " + type_name(value));
}

std::string in_radix(uint64_t value, unsigned radix, bool upper) {
  std::string out;
  do {
    const unsigned digit = static_cast<unsigned>(value % radix);
    out.push_back((upper ? "0123456789ABCDEF" : "0123456789abcdef")[digit]);
    value /= radix;
  } while (value > 0);
  std::reverse(out.begin(), out.end());
  return out;
}

void group_thousands(std::string* digits) {
  size_t end = digits->find_first_not_of("0123456789");
  if (end == std::string::npos) end = digits->size();
  for (size_t at = end; at > 3; at -= 3) digits->insert(at - 3, ",");
}

// Digits of the absolute value; the sign is put before by the caller.
std::string magnitude(const Value& value, const Spec& spec) {
  const char type = spec.type;
  std::string out;
  if (type == 'd' || type == 'i' || type == 'u' || type == 'x' || type == 'X' || type == 'o' || type == 'b') {
    const int64_t n = value.is(Kind::kFloat) ? static_cast<int64_t>(value.as_real()) : value.as_int();
    const uint64_t size = n < 0 ? 0 - static_cast<uint64_t>(n) : static_cast<uint64_t>(n);
    const unsigned radix = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    out = in_radix(size, radix, type == 'X');
    if (spec.precision > static_cast<int64_t>(out.size())) {
      out.insert(0, static_cast<size_t>(spec.precision) - out.size(), '0');
    }
    if (spec.alternate && radix != 10) out = std::string("0") + type + out;
  } else {
    const double d = std::fabs(value.as_real());
    char buffer[800];
    char format[8] = {'%', '.', '*', type, 0, 0, 0, 0};
    if (type == '%') format[3] = 'f';
    const int precision = static_cast<int>(spec.precision < 0 ? 6 : std::min<int64_t>(spec.precision, 300));
    std::snprintf(buffer, sizeof buffer, format, precision, type == '%' ? d * 100 : d);
    out = buffer;
    if (type == '%') out += "%";
  }
  if (spec.comma) group_thousands(&out);
  return out;
}

std::string number_text(const Value& value, const Spec& spec) {
  if (!value.is_number()) fail_number(spec.type, value);
  if (value.is(Kind::kFloat) && (std::fabs(value.as_real()) >= 9.2e18 || std::isnan(value.as_real())) &&
      std::string_view("diuxXob").find(spec.type) != std::string_view::npos) {
    fail_type("number does not fit in 64 bits");
  }
  const bool negative = value.is(Kind::kFloat) ? std::signbit(value.as_real()) : value.as_int() < 0;
  std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  std::string digits = magnitude(value, spec);
  const int64_t missing = spec.width - static_cast<int64_t>(sign.size() + digits.size());
  if (spec.zero && missing > 0) digits.insert(0, static_cast<size_t>(missing), '0');
  return sign + digits;
}

void append_padded(const Text& text, const Spec& spec, char otherwise, TextBuilder* out) {
  if (spec.width > kMaxWidth) fail_type("format width is larger than " + std::to_string(kMaxWidth));
  const int64_t missing = std::max<int64_t>(spec.width - text.length, 0);
  const char align = spec.align != 0 ? spec.align : otherwise;
  const int64_t before = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
  const TextPtr fill = make_text(spec.fill);
  out->append_repeated(*fill, before);
  out->append(text);
  out->append_repeated(*fill, missing - before);
}

TextPtr cut(const TextPtr& text, int64_t precision, Budget& budget) {
  if (precision < 0 || precision >= text->length) return text;
  return sub_text(*text, 0, byte_offset(*text, precision, budget), budget);
}

TextPtr repr_text(const Value& value, Budget& budget) {
  TextBuilder out(budget);
  append_repr(value, out);
  return out.finish();
}

bool is_number_type(char c) { return std::string_view("diuxXobeEfFgG%").find(c) != std::string_view::npos; }

int64_t read_number(std::string_view text, size_t* at) {
  int64_t value = 0;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') {
    value = std::min<int64_t>(value * 10 + (text[(*at)++] - '0'), kMaxWidth + 1);
  }
  if (value > kMaxWidth) fail_type("format width or precision is larger than " + std::to_string(kMaxWidth));
  return value;
}

class PercentFormatter {
 public:
  PercentFormatter(const Text& format, const Value& values, Budget& budget)
      : format_(format), values_(values), budget_(budget), out_(budget) {}

  TextPtr run() {
    const std::string_view text = format_.bytes;
    while (at_ < text.size()) {
      const size_t percent = std::min(text.find('%', at_), text.size());
      out_.append(format_, at_, percent);
      at_ = percent + 1;
      if (percent < text.size()) directive(text);
    }
    if (values_.is(Kind::kTuple) ? next_ < values_.as_sequence().items.size()
                                 : next_ == 0 && !values_.is(Kind::kDict) && !values_.is(Kind::kList)) {
      fail_type("not all arguments converted during string formatting");
    }
    return out_.finish();
  }

 private:
  void directive(std::string_view text) {
    Spec spec;
    Value named;
    bool has_name = false;
    if (at_ < text.size() && text[at_] == '(') {
      const size_t close = text.find(')', at_);
      if (close == std::string_view::npos) fail_type("incomplete format key");
      named = lookup(std::string(text.substr(at_ + 1, close - at_ - 1)));
      has_name = true;
      at_ = close + 1;
    }
    for (; at_ < text.size(); ++at_) {
      const char c = text[at_];
      if (c == '-') spec.align = '<';
      else if (c == '0') spec.zero = true;
      else if (c == '+' || (c == ' ' && spec.sign != '+')) spec.sign = c;
      else if (c == '#') spec.alternate = true;
      else if (c != ' ') break;
    }
    spec.width = star_or_number(text, &spec);
    if (at_ < text.size() && text[at_] == '.') {
      ++at_;
      spec.precision = star_or_number(text, nullptr);
    }
    if (at_ >= text.size()) fail_type("incomplete format");
    spec.type = text[at_++];
    if (spec.type == '%') return out_.append("%");
    convert(has_name ? named : next(), spec);
  }

  int64_t star_or_number(std::string_view text, Spec* spec) {
    if (at_ >= text.size() || text[at_] != '*') return read_number(text, &at_);
    ++at_;
    const Value value = next();
    if (!value.is_integral()) fail_type("* wants int");
    const int64_t n = value.as_int();
    if (n < -kMaxWidth || n > kMaxWidth) fail_type("format width is larger than " + std::to_string(kMaxWidth));
    if (n < 0 && spec != nullptr) spec->align = '<';
    return n < 0 && spec != nullptr ? -n : std::max<int64_t>(n, 0);
  }

  Value lookup(const std::string& name) const {
    if (!values_.is(Kind::kDict)) fail_type("format requires a mapping");
    const Value* found = values_.as_dict().find(name);
    if (found == nullptr) fail_type(repr_string(name));
    return *found;
  }

  Value next() {
    if (!values_.is(Kind::kTuple)) {
      if (next_++ > 0) fail_type("not enough arguments for format string");
      return values_;
    }
    const auto& items = values_.as_sequence().items;
    if (next_ >= items.size()) fail_type("not enough arguments for format string");
    return items[next_++];
  }

  void convert(const Value& value, Spec spec) {
    if (spec.align == '<') spec.zero = false;
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
      const TextPtr text = spec.type == 's' ? to_text(value, budget_) : repr_text(value, budget_);
      return append_padded(*cut(text, spec.precision, budget_), spec, '>', &out_);
    }
    if (spec.type == 'c' && value.is(Kind::kString) && value.as_text().length == 1) {
      return append_padded(value.as_text(), spec, '>', &out_);
    }
    if (!is_number_type(spec.type) || spec.type == 'b') {
      fail_type(std::string("unsupported format character '") + spec.type + "'");
    }
    append_padded(*make_text(number_text(value, spec)), spec, '>', &out_);
  }

  const Text& format_;
  const Value& values_;
  Budget& budget_;
  TextBuilder out_;
  size_t at_ = 0;
  size_t next_ = 0;
};

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  size_t length = 0;
  if (!text.empty()) decode(text, 0, &length);
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (length > 0 && text.size() > length && is_align(text[length])) {
    spec.fill = text.substr(0, length);
    spec.align = text[length];
    at = length + 1;
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[0];
    at = 1;
  }
  const auto take = [&](char c) { return at < text.size() && text[at] == c ? ++at, true : false; };
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
  spec.alternate = take('#');
  spec.zero = take('0');
  spec.width = read_number(text, &at);
  spec.comma = take(',');
  if (take('.')) spec.precision = read_number(text, &at);
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) fail_type("Invalid format specifier");
  return spec;
}

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& in, const Text& format, const Args& args)
      : in_(in), format_(format), args_(args), out_(in.budget()) {}

  TextPtr run() {
    const std::string_view text = format_.bytes;
    for (size_t at = 0; at < text.size();) {
      const size_t brace = std::min(text.find_first_of("{}", at), text.size());
      out_.append(format_, at, brace);
      if (brace == text.size()) break;
      if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
        out_.append(format_, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      if (text[brace] == '}') fail_type("Single '}' encountered in format string");
      const size_t close = text.find('}', brace);
      if (close == std::string_view::npos) fail_type("expected '}' before end of string");
      field(text.substr(brace + 1, close - brace - 1));
      at = close + 1;
    }
    return out_.finish();
  }

 private:
  void field(std::string_view text) {
    std::string_view spec_text;
    if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
      spec_text = text.substr(colon + 1);
      text = text.substr(0, colon);
    }
    char conversion = 0;
    if (const size_t mark = text.find('!'); mark != std::string_view::npos) {
      if (mark + 2 != text.size()) fail_type("expected ':' after conversion specifier");
      conversion = text[mark + 1];
      text = text.substr(0, mark);
    }
    if (spec_text.find('{') != std::string_view::npos) fail_type("nested fields in a format string are not supported");
    Value value = resolve(text);
    if (conversion == 'r') value = Value::text(repr_text(value, in_.budget()));
    if (conversion == 's') value = Value::text(to_text(value, in_.budget()));
    if (conversion != 0 && conversion != 'r' && conversion != 's') fail_type("unknown conversion specifier");
    append(value, parse_spec(spec_text));
  }

  Value resolve(std::string_view text) {
    const size_t end = std::min(text.find_first_of(".["), text.size());
    const std::string first(text.substr(0, end));
    Value value;
    if (first.empty() || (first[0] >= '0' && first[0] <= '9')) {
      size_t at = 0;
      const size_t index = first.empty() ? next_++ : static_cast<size_t>(read_number(first, &at));
      if (index >= args_.positional.size()) {
        fail_type("Replacement index " + std::to_string(index) + " out of range for positional args tuple");
      }
      value = args_.positional[index];
    } else {
      const auto it = std::find_if(args_.named.begin(), args_.named.end(), [&](const auto& a) { return a.first == first; });
      if (it == args_.named.end()) fail_type(repr_string(first));
      value = it->second;
    }
    return follow(value, text.substr(end));
  }

  // .name and [key] after the first part.
  Value follow(Value value, std::string_view text) {
    while (!text.empty()) {
      const bool is_item = text[0] == '[';
      const size_t end = is_item ? text.find(']') : std::min(text.find_first_of(".[", 1), text.size());
      if (end == std::string_view::npos || (is_item ? end : end - 1) < 1) fail_type("Empty attribute in format string");
      const std::string name(text.substr(1, end - 1));
      if (!is_item) {
        value = in_.attribute(value, name);
      } else if (!name.empty() && name.find_first_not_of("0123456789") == std::string::npos) {
        size_t at = 0;
        value = in_.item(value, Value::integer(read_number(name, &at)));
      } else {
        value = in_.item(value, Value::text(name));
      }
      if (value.is(Kind::kUndefined)) fail_undefined(value);
      text = text.substr(is_item ? end + 1 : end);
    }
    return value;
  }

  void append(const Value& value, Spec spec) {
    const bool as_number = value.is_number() && (!value.is(Kind::kBool) || spec.type != 0);
    if (!as_number) {
      if (spec.type != 0 && spec.type != 's') {
        fail_type(std::string("Unknown format code '") + spec.type + "' for object of type '" + type_name(value) + "'");
      }
      if (spec.zero && spec.align == 0) spec.fill = "0";
      return append_padded(*cut(to_text(value, in_.budget()), spec.precision, in_.budget()), spec, '<', &out_);
    }
    if (spec.type == 'n') spec.type = 0;
    if (spec.type == 0 && value.is(Kind::kFloat) && spec.precision >= 0) spec.type = 'g';
    if (spec.type == 0) spec.type = value.is(Kind::kFloat) ? 'r' : 'd';
    if (spec.align != 0 && spec.align != '=') {
      if (spec.zero && spec.fill == " ") spec.fill = "0";
      spec.zero = false;
    }
    if (spec.type == 'r') {
      return append_padded(*make_text(float_repr(value.as_real())), spec, '>', &out_);
    }
    if (!is_number_type(spec.type)) {
      fail_type(std::string("Unknown format code '") + spec.type + "' for object of type '" + type_name(value) + "'");
    }
    if (value.is(Kind::kFloat) && std::string_view("dixXob").find(spec.type) != std::string_view::npos) {
      fail_type(std::string("Unknown format code '") + spec.type + "' for object of type 'float'");
    }
    append_padded(*make_text(number_text(value, spec)), spec, '>', &out_);
  }

  Interpreter& in_;
  const Text& format_;
  const Args& args_;
  TextBuilder out_;
  size_t next_ = 0;
};

}  // namespace

TextPtr percent_format(const Text& format, const Value& values, Budget& budget) {
  return PercentFormatter(format, values, budget).run();
}

TextPtr brace_format(Interpreter& interpreter, const Text& format, const Args& args) {
  return BraceFormatter(interpreter, format, args).run();
}

}  // namespace tandem::jinja
