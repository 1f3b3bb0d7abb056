// Methods of str.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/unicode.h"

namespace tandem::jinja {
namespace {

const Text* chars_of(const Params& params, size_t i) {
  return params.has(i) && !params.at(i).is(Kind::kNone) ? &params.text(i) : nullptr;
}

template <bool kLeft, bool kRight>
Value strip(Interpreter& in, const Text& self, Args& args) {
  const Params params("strip", args, {"chars"}, 0);
  return Value::text(strip_text(self, chars_of(params, 0), kLeft, kRight, in.budget()));
}

Value upper(Interpreter& in, const Text& self, Args&) { return Value::text(map_case(self, "upper", in.budget())); }
Value lower(Interpreter& in, const Text& self, Args&) { return Value::text(map_case(self, "lower", in.budget())); }
Value title(Interpreter& in, const Text& self, Args&) { return Value::text(map_case(self, "title", in.budget())); }
Value swapcase(Interpreter& in, const Text& self, Args&) {
  return Value::text(map_case(self, "swapcase", in.budget()));
}
Value capitalize(Interpreter& in, const Text& self, Args&) {
  return Value::text(map_case(self, "capitalize", in.budget()));
}

// Parts of `self` between the byte ranges that split() removes.
struct Splitter {
  Interpreter& in;
  const Text& self;
  std::vector<Value> parts;
  void add(size_t begin, size_t end) {
    in.budget().charge(1);
    in.budget().check_items(parts.size() + 1);
    parts.push_back(Value::text(sub_text(self, begin, end, in.budget())));
  }
  Value finish() { return make_sequence(Kind::kList, std::move(parts), in.budget()); }
};

void split_spaces(Splitter* out, int64_t limit) {
  out->in.budget().charge_characters(out->self.bytes.size());
  const std::string_view bytes = out->self.bytes;
  size_t at = 0;
  while (true) {
    size_t length = 0;
    while (at < bytes.size() && is_space(decode(bytes, at, &length))) at += length;
    if (at >= bytes.size()) return;
    if (limit-- == 0) return out->add(at, bytes.size());
    const size_t begin = at;
    while (at < bytes.size() && !is_space(decode(bytes, at, &length))) at += length;
    out->add(begin, at);
  }
}

void rsplit_spaces(Splitter* out, int64_t limit) {
  out->in.budget().charge_characters(out->self.bytes.size());
  std::vector<std::pair<size_t, size_t>> words;
  const std::string_view bytes = out->self.bytes;
  for (size_t at = 0, length = 0; at < bytes.size();) {
    while (at < bytes.size() && is_space(decode(bytes, at, &length))) at += length;
    const size_t begin = at;
    while (at < bytes.size() && !is_space(decode(bytes, at, &length))) at += length;
    if (at > begin) words.emplace_back(begin, at);
  }
  const size_t kept = limit < 0 ? words.size() : std::min(words.size(), static_cast<size_t>(limit));
  const size_t first = words.size() - kept;
  if (first > 0) out->add(0, words[first - 1].second);
  for (size_t i = first; i < words.size(); ++i) out->add(words[i].first, words[i].second);
}

std::vector<size_t> occurrences(std::string_view bytes, std::string_view needle, int64_t limit) {
  std::vector<size_t> hits;
  for (size_t at = 0; limit != 0 && (at = find_bytes(bytes, needle, at)) != std::string_view::npos;
       at += needle.size(), --limit) {
    hits.push_back(at);
  }
  return hits;
}

void split_at(Splitter* out, const std::vector<size_t>& hits, size_t width) {
  size_t begin = 0;
  for (const size_t hit : hits) {
    out->add(begin, hit);
    begin = hit + width;
  }
  out->add(begin, out->self.bytes.size());
}

Value split(Interpreter& in, const Text& self, Args& args) {
  const Params params("split", args, {"sep", "maxsplit"}, 0);
  const int64_t limit = params.integer(1, -1);
  const Text* separator = chars_of(params, 0);
  Splitter out{in, self, {}};
  in.budget().charge_bytes(self.bytes.size());
  if (separator == nullptr) {
    split_spaces(&out, limit);
    return out.finish();
  }
  if (separator->bytes.empty()) fail_type("empty separator");
  split_at(&out, occurrences(self.bytes, separator->bytes, limit), separator->bytes.size());
  return out.finish();
}

// From the right: separators that overlap are taken right to left.
Value rsplit(Interpreter& in, const Text& self, Args& args) {
  const Params params("rsplit", args, {"sep", "maxsplit"}, 0);
  int64_t limit = params.integer(1, -1);
  const Text* separator = chars_of(params, 0);
  Splitter out{in, self, {}};
  in.budget().charge_bytes(self.bytes.size());
  if (separator == nullptr) {
    rsplit_spaces(&out, limit);
    return out.finish();
  }
  const std::string& needle = separator->bytes;
  if (needle.empty()) fail_type("empty separator");
  std::vector<size_t> hits;
  in.budget().charge_characters(self.bytes.size());
  std::string reversed(self.bytes.rbegin(), self.bytes.rend());
  const std::string reversed_needle(needle.rbegin(), needle.rend());
  for (const size_t hit : occurrences(reversed, reversed_needle, limit)) {
    hits.push_back(self.bytes.size() - hit - needle.size());
  }
  std::reverse(hits.begin(), hits.end());
  split_at(&out, hits, needle.size());
  return out.finish();
}

bool is_line_end(uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

Value splitlines(Interpreter& in, const Text& self, Args& args) {
  const Params params("splitlines", args, {"keepends"}, 0);
  const bool keeps = params.flag(0, false);
  in.budget().charge_characters(self.bytes.size());
  Splitter out{in, self, {}};
  const std::string_view bytes = self.bytes;
  size_t begin = 0;
  for (size_t at = 0, length = 0; at < bytes.size(); at += length) {
    const uint32_t c = decode(bytes, at, &length);
    if (!is_line_end(c)) continue;
    if (c == '\r' && at + 1 < bytes.size() && bytes[at + 1] == '\n') length = 2;
    out.add(begin, keeps ? at + length : at);
    begin = at + length;
  }
  if (begin < bytes.size()) out.add(begin, bytes.size());
  return out.finish();
}

// The byte range [start, end) that optional code point arguments i and i + 1 select; false: empty for find.
bool find_range(const Params& params, size_t i, const Text& self, Budget& budget, size_t* begin, size_t* end) {
  const auto bound = [&](size_t k, int64_t otherwise) {
    int64_t at = params.integer(k, otherwise);
    if (at < 0) at = std::max<int64_t>(0, at + self.length);
    return at;
  };
  const int64_t from = bound(i, 0);
  const int64_t to = std::min(bound(i + 1, self.length), self.length);
  if (from > self.length || from > to) return false;
  *begin = byte_offset(self, from, budget);
  *end = byte_offset(self, to, budget);
  return true;
}

Value position_of(const Text& self, size_t byte, Budget& budget) {
  if (self.is_ascii()) return Value::integer(static_cast<int64_t>(byte));
  budget.charge_bytes(byte);
  return Value::integer(count_code_points(std::string_view(self.bytes).substr(0, byte)));
}

Value find_from(Interpreter& in, const Text& self, Args& args, bool from_right, bool must_exist) {
  const Params params("find", args, {"sub", "start", "end"}, 1);
  const std::string& needle = params.text(0).bytes;
  size_t begin = 0;
  size_t end = 0;
  size_t found = std::string::npos;
  in.budget().charge_bytes(self.bytes.size());
  if (find_range(params, 1, self, in.budget(), &begin, &end)) {
    const std::string_view part = std::string_view(self.bytes).substr(begin, end - begin);
    if (!from_right) {
      found = find_bytes(part, needle, 0);
    } else {  // reversed, so that the search stays linear
      in.budget().charge_characters(part.size());
      const std::string reversed(part.rbegin(), part.rend());
      const size_t hit = find_bytes(reversed, std::string(needle.rbegin(), needle.rend()), 0);
      if (hit != std::string::npos) found = part.size() - hit - needle.size();
    }
  }
  if (found != std::string::npos) return position_of(self, begin + found, in.budget());
  if (must_exist) fail_type("substring not found");
  return Value::integer(-1);
}

Value find(Interpreter& in, const Text& self, Args& args) { return find_from(in, self, args, false, false); }
Value rfind(Interpreter& in, const Text& self, Args& args) { return find_from(in, self, args, true, false); }
Value index(Interpreter& in, const Text& self, Args& args) { return find_from(in, self, args, false, true); }
Value rindex(Interpreter& in, const Text& self, Args& args) { return find_from(in, self, args, true, true); }

Value count(Interpreter& in, const Text& self, Args& args) {
  const Params params("count", args, {"sub", "start", "end"}, 1);
  size_t begin = 0;
  size_t end = 0;
  if (!find_range(params, 1, self, in.budget(), &begin, &end)) return Value::integer(0);
  const std::string_view part = std::string_view(self.bytes).substr(begin, end - begin);
  in.budget().charge_bytes(part.size());
  if (params.text(0).bytes.empty()) return Value::integer(count_code_points(part) + 1);
  return Value::integer(static_cast<int64_t>(occurrences(part, params.text(0).bytes, -1).size()));
}

bool has_affix(std::string_view text, const Value& affix, bool at_end) {
  if (!affix.is(Kind::kString)) {
    fail_type(std::string("startswith/endswith first arg must be str or a tuple of str, not ") + type_name(affix));
  }
  const std::string& part = affix.as_text().bytes;
  if (part.size() > text.size()) return false;
  return text.compare(at_end ? text.size() - part.size() : 0, part.size(), part) == 0;
}

Value affix(Interpreter& in, const Text& self, Args& args, bool at_end) {
  const Params params(at_end ? "endswith" : "startswith", args, {"prefix", "start", "end"}, 1);
  size_t begin = 0;
  size_t end = 0;
  if (!find_range(params, 1, self, in.budget(), &begin, &end)) return Value::boolean(false);
  const std::string_view part = std::string_view(self.bytes).substr(begin, end - begin);
  if (!params.at(0).is(Kind::kTuple)) return Value::boolean(has_affix(part, params.at(0), at_end));
  for (const Value& choice : params.at(0).as_sequence().items) {
    in.budget().charge(1);
    if (has_affix(part, choice, at_end)) return Value::boolean(true);
  }
  return Value::boolean(false);
}

Value startswith(Interpreter& in, const Text& self, Args& args) { return affix(in, self, args, false); }
Value endswith(Interpreter& in, const Text& self, Args& args) { return affix(in, self, args, true); }

Value remove_affix(Interpreter& in, const Text& self, Args& args, bool at_end) {
  const Params params("removeprefix", args, {"affix"}, 1);
  const size_t n = params.text(0).bytes.size();
  if (!has_affix(self.bytes, params.at(0), at_end)) return Value::text(sub_text(self, 0, self.bytes.size(), in.budget()));
  return Value::text(at_end ? sub_text(self, 0, self.bytes.size() - n, in.budget())
                            : sub_text(self, n, self.bytes.size(), in.budget()));
}

Value removeprefix(Interpreter& in, const Text& self, Args& args) { return remove_affix(in, self, args, false); }
Value removesuffix(Interpreter& in, const Text& self, Args& args) { return remove_affix(in, self, args, true); }

Value replace(Interpreter& in, const Text& self, Args& args) {
  const Params params("replace", args, {"old", "new", "count"}, 2);
  return Value::text(replace_text(self, params.text(0), params.text(1), params.integer(2, -1), in.budget()));
}

Value join(Interpreter& in, const Text& self, Args& args) {
  const Params params("join", args, {"iterable"}, 1);
  const std::vector<Value> items = iterate(params.at(0), in.budget());
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].is(Kind::kString)) continue;
    fail_type("sequence item " + std::to_string(i) + ": expected str instance, " + type_name(items[i]) + " found");
  }
  return Value::text(join_texts(items, self, in.budget()));
}

Value partition_at(Interpreter& in, const Text& self, Args& args, bool from_right) {
  const Params params("partition", args, {"sep"}, 1);
  const Text& separator = params.text(0);
  if (separator.bytes.empty()) fail_type("empty separator");
  const std::vector<size_t> hits = occurrences(self.bytes, separator.bytes, from_right ? -1 : 1);
  Splitter out{in, self, {}};
  const size_t n = self.bytes.size();
  if (hits.empty()) {
    out.add(0, from_right ? 0 : n);
    out.add(0, 0);
    out.add(from_right ? 0 : n, n);
  } else {
    const size_t hit = hits.back();
    out.add(0, hit);
    out.add(hit, hit + separator.bytes.size());
    out.add(hit + separator.bytes.size(), n);
  }
  return make_sequence(Kind::kTuple, std::move(out.parts), in.budget());
}

Value partition(Interpreter& in, const Text& self, Args& args) { return partition_at(in, self, args, false); }
Value rpartition(Interpreter& in, const Text& self, Args& args) { return partition_at(in, self, args, true); }

// True when the string is not empty and all its characters have the property.
template <bool (*kProperty)(uint32_t)>
Value all_are(Interpreter& in, const Text& self, Args&) {
  in.budget().charge_characters(self.bytes.size());
  for (size_t at = 0, length = 0; at < self.bytes.size(); at += length) {
    if (!kProperty(decode(self.bytes, at, &length))) return Value::boolean(false);
  }
  return Value::boolean(!self.bytes.empty());
}

bool is_alnum(uint32_t c) { return is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c); }
bool is_ascii_char(uint32_t c) { return c < 0x80; }

Value isascii(Interpreter& in, const Text& self, Args& args) {
  return self.bytes.empty() ? Value::boolean(true) : all_are<is_ascii_char>(in, self, args);
}

// isupper/islower: some cased character, and none of the other case.
template <bool kUpper>
Value is_case(Interpreter& in, const Text& self, Args&) {
  in.budget().charge_characters(self.bytes.size());
  bool found = false;
  for (size_t at = 0, length = 0; at < self.bytes.size(); at += length) {
    const uint32_t c = decode(self.bytes, at, &length);
    if (is_title(c) || (kUpper ? is_lower(c) : is_upper(c))) return Value::boolean(false);
    found = found || (kUpper ? is_upper(c) : is_lower(c));
  }
  return Value::boolean(found);
}

TextPtr pad(Interpreter& in, const Text& self, const Params& params, bool left, bool right) {
  const int64_t missing = params.integer(0, 0) - self.length;
  const TextPtr space = make_text(" ");
  const Text& fill = params.text(1, *space);
  if (fill.length != 1) fail_type("The fill character must be exactly one character long");
  const int64_t total = std::max<int64_t>(missing, 0);
  // Python puts the odd one on the left only when the width is odd.
  int64_t before = left && right ? total / 2 + (total & params.integer(0, 0) & 1) : left ? total : 0;
  TextBuilder out(in.budget());
  out.append_repeated(fill, before);
  out.append(self);
  out.append_repeated(fill, total - before);
  return out.finish();
}

Value ljust(Interpreter& in, const Text& self, Args& args) {
  return Value::text(pad(in, self, Params("ljust", args, {"width", "fillchar"}, 1), false, true));
}
Value rjust(Interpreter& in, const Text& self, Args& args) {
  return Value::text(pad(in, self, Params("rjust", args, {"width", "fillchar"}, 1), true, false));
}
Value center(Interpreter& in, const Text& self, Args& args) {
  return Value::text(pad(in, self, Params("center", args, {"width", "fillchar"}, 1), true, true));
}

Value zfill(Interpreter& in, const Text& self, Args& args) {
  const Params params("zfill", args, {"width"}, 1);
  const bool has_sign = !self.bytes.empty() && (self.bytes[0] == '-' || self.bytes[0] == '+');
  TextBuilder out(in.budget());
  out.append(self, 0, has_sign ? 1 : 0);
  out.append_repeated(*make_text("0"), params.integer(0, 0) - self.length);
  out.append(self, has_sign ? 1 : 0, self.bytes.size());
  return Value::text(out.finish());
}

Value format(Interpreter& in, const Text& self, Args& args) { return Value::text(brace_format(in, self, args)); }

}  // namespace

TextMethod find_text_method(const std::string& name) {
  static const auto* kMethods = new std::unordered_map<std::string_view, TextMethod>{
      {"strip", strip<true, true>}, {"lstrip", strip<true, false>}, {"rstrip", strip<false, true>},
      {"upper", upper}, {"lower", lower}, {"title", title}, {"capitalize", capitalize}, {"swapcase", swapcase},
      {"casefold", lower}, {"split", split}, {"rsplit", rsplit}, {"splitlines", splitlines}, {"find", find},
      {"rfind", rfind}, {"index", index}, {"rindex", rindex}, {"count", count}, {"startswith", startswith},
      {"endswith", endswith}, {"removeprefix", removeprefix}, {"removesuffix", removesuffix},
      {"replace", replace}, {"join", join}, {"partition", partition}, {"rpartition", rpartition},
      {"isdigit", all_are<is_digit>}, {"isdecimal", all_are<is_decimal>}, {"isnumeric", all_are<is_numeric>},
      {"isalpha", all_are<is_alpha>}, {"isalnum", all_are<is_alnum>}, {"isspace", all_are<is_space>},
      {"isascii", isascii}, {"isupper", is_case<true>}, {"islower", is_case<false>}, {"ljust", ljust},
      {"rjust", rjust}, {"center", center}, {"zfill", zfill}, {"format", format},
  };
  const auto it = kMethods->find(name);
  return it == kMethods->end() ? nullptr : it->second;
}

}  // namespace tandem::jinja
