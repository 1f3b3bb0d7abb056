// Filters that give strings.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/unicode.h"

namespace tandem::jinja {
namespace {

TextPtr subject(Interpreter& in, const Params& params) { return to_text(params.at(0), in.budget()); }

Value case_filter(Interpreter& in, Args& args, const char* how) {
  const Params params(how, args, {"s"}, 1);
  return Value::text(map_case(*subject(in, params), how, in.budget()));
}

Value upper(Interpreter& in, Args& args) { return case_filter(in, args, "upper"); }
Value lower(Interpreter& in, Args& args) { return case_filter(in, args, "lower"); }
Value capitalize(Interpreter& in, Args& args) { return case_filter(in, args, "capitalize"); }

// jinja2's title: words begin after white space and after - ( { [ <, not after an apostrophe.
Value title(Interpreter& in, Args& args) {
  const Params params("title", args, {"s"}, 1);
  const TextPtr text = subject(in, params);
  TextBuilder out(in.budget());
  SpanCursor spans(*text);
  in.budget().charge_characters(text->bytes.size());
  bool at_start = true;
  for (size_t at = 0, length = 0; at < text->bytes.size(); at += length) {
    const uint32_t c = decode(text->bytes, at, &length);
    const bool separates = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    out.append(at_start ? to_upper(c) : to_lower(c), spans.from_input(at));
    at_start = separates;
  }
  return Value::text(out.finish());
}

Value trim(Interpreter& in, Args& args) {
  const Params params("trim", args, {"value", "chars"}, 1);
  const bool has_chars = params.has(1) && !params.at(1).is(Kind::kNone);
  return Value::text(strip_text(*subject(in, params), has_chars ? &params.text(1) : nullptr, true, true, in.budget()));
}

Value replace(Interpreter& in, Args& args) {
  const Params params("replace", args, {"s", "old", "new", "count"}, 3);
  return Value::text(replace_text(*subject(in, params), *to_text(params.at(1), in.budget()),
                                  *to_text(params.at(2), in.budget()), params.integer(3, -1), in.budget()));
}

Value string(Interpreter& in, Args& args) {
  const Params params("string", args, {"object"}, 1);
  return Value::text(subject(in, params));
}

Value as_markup(TextPtr text) {
  auto markup = std::make_shared<Text>(*text);
  markup->is_markup = true;
  return Value::text(markup);
}

Value safe(Interpreter& in, Args& args) {
  const Params params("safe", args, {"value"}, 1);
  return as_markup(subject(in, params));
}

Value escape(Interpreter& in, Args& args) {
  const Params params("escape", args, {"value"}, 1);
  const TextPtr text = subject(in, params);
  return text->is_markup ? Value::text(text) : as_markup(escape_html(*text, in.budget()));
}

Value forceescape(Interpreter& in, Args& args) {
  const Params params("forceescape", args, {"value"}, 1);
  return as_markup(escape_html(*subject(in, params), in.budget()));
}

Value tojson(Interpreter& in, Args& args) {
  const Params params("tojson", args, {"x", "ensure_ascii", "indent", "separators", "sort_keys"}, 1);
  return Value::text(to_json(params.at(0), params, in.budget()));
}

Value format(Interpreter& in, Args& args) {
  if (args.positional.empty()) fail_type("format() needs a string");
  const TextPtr text = to_text(args.positional[0], in.budget());
  std::vector<Value> rest(args.positional.begin() + 1, args.positional.end());
  if (args.named.empty()) {
    return Value::text(percent_format(*text, make_sequence(Kind::kTuple, std::move(rest), in.budget()), in.budget()));
  }
  if (!rest.empty()) fail_type("can't handle positional and keyword arguments at the same time");
  return Value::text(percent_format(*text, Value::dict(args.named), in.budget()));
}

// Lines of `text` + "\n", as splitlines gives them.
std::vector<TextPtr> lines_of(Interpreter& in, const Text& text) {
  Args none;
  const Value list = find_text_method("splitlines")(in, text, none);
  std::vector<TextPtr> lines;
  for (const Value& line : list.as_sequence().items) lines.push_back(line.text_ptr());
  const bool ends_line = text.bytes.empty() || text.bytes.back() == '\n';
  if (ends_line) lines.push_back(make_text(""));
  return lines;
}

Value indent(Interpreter& in, Args& args) {
  const Params params("indent", args, {"s", "width", "first", "blank"}, 1);
  const TextPtr text = subject(in, params);
  TextPtr indention;
  if (params.has(1) && params.at(1).is(Kind::kString)) {
    indention = params.at(1).text_ptr();
  } else {
    TextBuilder spaces(in.budget());
    spaces.append_repeated(*make_text(" "), params.integer(1, 4));
    indention = spaces.finish();
  }
  TextBuilder out(in.budget());
  const std::vector<TextPtr> lines = lines_of(in, *text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n");
    const bool indents = i == 0 ? params.flag(2, false) : params.flag(3, false) || !lines[i]->bytes.empty();
    if (indents) out.append(*indention);
    out.append(*lines[i]);
  }
  return Value::text(out.finish());
}

Value truncate(Interpreter& in, Args& args) {
  const Params params("truncate", args, {"s", "length", "killwords", "end", "leeway"}, 1);
  const TextPtr text = subject(in, params);
  const TextPtr dots = make_text("...");
  const Text& end = params.text(3, *dots);
  const int64_t length = params.integer(1, 255);
  const int64_t leeway = params.integer(4, 5);
  if (length < end.length) fail_type("truncate() length must be >= the length of `end`");
  if (leeway < 0) fail_type("truncate() leeway must be >= 0");
  if (text->length <= length || text->length - length <= leeway) return Value::text(text);
  size_t cut = byte_offset(*text, length - end.length, in.budget());
  if (!params.flag(2, false)) {
    const size_t space = cut == 0 ? std::string::npos : text->bytes.rfind(' ', cut - 1);
    if (space != std::string::npos) cut = space;
  }
  TextBuilder out(in.budget());
  out.append(*text, 0, cut);
  out.append(end);
  return Value::text(out.finish());
}

bool is_word(uint32_t c) { return c == '_' || is_alpha(c) || is_decimal(c) || is_numeric(c); }

Value wordcount(Interpreter& in, Args& args) {
  const Params params("wordcount", args, {"s"}, 1);
  const TextPtr text = subject(in, params);
  in.budget().charge_characters(text->bytes.size());
  int64_t count = 0;
  bool in_word = false;
  for (size_t at = 0, length = 0; at < text->bytes.size(); at += length) {
    const bool word = is_word(decode(text->bytes, at, &length));
    count += word && !in_word ? 1 : 0;
    in_word = word;
  }
  return Value::integer(count);
}

void append_quoted(const Text& text, bool for_query, TextBuilder* out) {
  out->budget().charge_characters(text.bytes.size());
  const std::string_view safe = for_query ? "_.-~" : "_.-~/";
  SpanCursor spans(text);
  for (size_t at = 0; at < text.bytes.size(); ++at) {
    const char c = text.bytes[at];
    const auto u = static_cast<unsigned char>(c);
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       safe.find(c) != std::string_view::npos;
    std::string quoted(1, c);
    if (c == ' ' && for_query) {
      quoted = "+";
    } else if (!plain) {
      quoted = {'%', "0123456789ABCDEF"[u >> 4], "0123456789ABCDEF"[u & 15]};
    }
    out->append(quoted, spans.from_input(at));
  }
}

Value urlencode(Interpreter& in, Args& args) {
  const Params params("urlencode", args, {"value"}, 1);
  const Value& value = params.at(0);
  TextBuilder out(in.budget());
  if (!value.is_sequence() && !value.is(Kind::kDict)) {
    append_quoted(*subject(in, params), false, &out);
    return Value::text(out.finish());
  }
  std::vector<std::vector<Value>> pairs;
  if (value.is(Kind::kDict)) {
    for (const auto& [key, item] : value.as_dict().items) pairs.push_back({key, item});
  } else {
    for (const Value& pair : iterate(value, in.budget())) pairs.push_back(iterate(pair, in.budget()));
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].size() != 2) fail_type("urlencode() takes pairs");
    if (i > 0) out.append("&");
    append_quoted(*to_text(pairs[i][0], in.budget()), true, &out);
    out.append("=");
    append_quoted(*to_text(pairs[i][1], in.budget()), true, &out);
  }
  return Value::text(out.finish());
}

Value center(Interpreter& in, Args& args) {
  const Params params("center", args, {"value", "width"}, 1);
  Args rest;
  rest.positional.push_back(params.has(1) ? params.at(1) : Value::integer(80));
  return find_text_method("center")(in, *subject(in, params), rest);
}

constexpr std::string_view kEntities[][2] = {{"&lt;", "<"},  {"&gt;", ">"},   {"&quot;", "\""}, {"&#34;", "\""},
                                             {"&#39;", "'"}, {"&amp;", "&"}};

// Removes comments and tags, folds white space, then resolves the entities that escape() writes.
Value striptags(Interpreter& in, Args& args) {
  const Params params("striptags", args, {"value"}, 1);
  const TextPtr text = subject(in, params);
  const std::string& bytes = text->bytes;
  TextBuilder out(in.budget());
  SpanCursor spans(*text);
  in.budget().charge_characters(text->bytes.size());
  bool pending_space = false;
  for (size_t at = 0, length = 0; at < bytes.size(); at += length) {
    const uint32_t c = decode(bytes, at, &length);
    if (c == '<') {
      const bool comment = bytes.compare(at, 4, "<!--") == 0;
      const size_t close = find_bytes(bytes, comment ? "-->" : ">", at);
      if (close != std::string::npos) {
        length = close + (comment ? 3 : 1) - at;
        continue;
      }
    }
    if (is_space(c)) {
      pending_space = out.size() > 0;
      continue;
    }
    if (pending_space) out.append(" ");
    pending_space = false;
    std::string shown = bytes.substr(at, length);
    const bool input = spans.from_input(at);
    for (const auto& [entity, character] : kEntities) {
      if (bytes.compare(at, entity.size(), entity) != 0) continue;
      shown = character;
      length = entity.size();
      break;
    }
    out.append(shown, input);
  }
  return Value::text(out.finish());
}

}  // namespace

const FunctionTable& text_filters() {
  static const auto* kFilters = new FunctionTable{
      {"upper", upper}, {"lower", lower}, {"capitalize", capitalize}, {"title", title}, {"trim", trim},
      {"replace", replace}, {"string", string}, {"safe", safe}, {"escape", escape}, {"e", escape},
      {"forceescape", forceescape}, {"tojson", tojson}, {"format", format}, {"indent", indent},
      {"truncate", truncate}, {"wordcount", wordcount}, {"urlencode", urlencode}, {"center", center},
      {"striptags", striptags},
  };
  return *kFilters;
}

bool is_known_filter(const std::string& name) {
  return text_filters().count(name) + list_filters().count(name) + number_filters().count(name) > 0;
}

}  // namespace tandem::jinja
