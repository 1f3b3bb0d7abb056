// What `x is …` can ask.
#include <cmath>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/unicode.h"

namespace tandem::jinja {
namespace {

using Test = bool (*)(Interpreter& in, const Value& value, const Args& rest);

const Value& operand(const Args& rest) {
  if (rest.positional.size() != 1 || !rest.named.empty()) fail_type("the test takes exactly one argument");
  return rest.positional[0];
}

Value remainder(Interpreter& in, const Value& value, const Value& by) {
  return binary_operation("%", value, by, in.budget());
}

bool equals_int(const Value& value, int64_t n) { return value.is_number() && value.as_real() == static_cast<double>(n); }

bool is_odd(Interpreter& in, const Value& v, const Args&) { return equals_int(remainder(in, v, Value::integer(2)), 1); }
bool is_even(Interpreter& in, const Value& v, const Args&) { return equals_int(remainder(in, v, Value::integer(2)), 0); }
bool is_divisible(Interpreter& in, const Value& v, const Args& r) {
  return equals_int(remainder(in, v, operand(r)), 0);
}
bool is_defined(Interpreter&, const Value& v, const Args&) { return !v.is(Kind::kUndefined); }
bool is_undefined(Interpreter&, const Value& v, const Args&) { return v.is(Kind::kUndefined); }
bool is_none(Interpreter&, const Value& v, const Args&) { return v.is(Kind::kNone); }
bool is_boolean(Interpreter&, const Value& v, const Args&) { return v.is(Kind::kBool); }
bool is_true(Interpreter&, const Value& v, const Args&) { return v.is(Kind::kBool) && v.as_int() != 0; }
bool is_false(Interpreter&, const Value& v, const Args&) { return v.is(Kind::kBool) && v.as_int() == 0; }
bool is_integer(Interpreter&, const Value& v, const Args&) { return v.is(Kind::kInt); }
bool is_float(Interpreter&, const Value& v, const Args&) { return v.is(Kind::kFloat); }
bool is_number(Interpreter&, const Value& v, const Args&) { return v.is_number(); }
bool is_string(Interpreter&, const Value& v, const Args&) { return v.is(Kind::kString); }
bool is_mapping(Interpreter&, const Value& v, const Args&) { return v.is(Kind::kDict); }
bool is_callable(Interpreter&, const Value& v, const Args&) { return v.object_as<Callable>() != nullptr; }
bool is_escaped(Interpreter&, const Value& v, const Args&) { return v.is(Kind::kString) && v.as_text().is_markup; }

bool is_sequence(Interpreter&, const Value& v, const Args&) {
  // An undefined value has a length and can be indexed, as far as Python can tell without trying.
  return v.is(Kind::kString) || v.is(Kind::kList) || v.is(Kind::kTuple) || v.is(Kind::kRange) || v.is(Kind::kDict) ||
         v.is(Kind::kUndefined);
}

bool is_iterable(Interpreter&, const Value& v, const Args&) {
  return v.is(Kind::kString) || v.is_sequence() || v.is(Kind::kDict) || v.is(Kind::kUndefined);
}

template <bool kUpper>
bool has_case(Interpreter& in, const Value& v, const Args&) {
  const TextPtr text = to_text(v, in.budget());
  bool found = false;
  for (size_t at = 0, length = 0; at < text->bytes.size(); at += length) {
    const uint32_t c = decode(text->bytes, at, &length);
    if (is_title(c) || (kUpper ? jinja::is_lower(c) : jinja::is_upper(c))) return false;
    found = found || (kUpper ? jinja::is_upper(c) : jinja::is_lower(c));
  }
  return found;
}

bool is_same(Interpreter& in, const Value& v, const Args& r) {
  const Value& other = operand(r);
  if (v.kind() != other.kind()) return false;
  if (v.is(Kind::kString)) return v.text_ptr() == other.text_ptr() || equal(v, other, in.budget());
  if (v.ref() != nullptr) return v.ref() == other.ref();
  return equal(v, other, in.budget());
}

bool is_in(Interpreter& in, const Value& v, const Args& r) { return contains(operand(r), v, in.budget()); }
bool is_eq(Interpreter& in, const Value& v, const Args& r) { return equal(v, operand(r), in.budget()); }
bool is_ne(Interpreter& in, const Value& v, const Args& r) { return !equal(v, operand(r), in.budget()); }
bool is_lt(Interpreter& in, const Value& v, const Args& r) { return less(v, operand(r), in.budget()); }
bool is_gt(Interpreter& in, const Value& v, const Args& r) { return less(operand(r), v, in.budget()); }
bool is_le(Interpreter& in, const Value& v, const Args& r) { return is_lt(in, v, r) || is_eq(in, v, r); }
bool is_ge(Interpreter& in, const Value& v, const Args& r) { return is_gt(in, v, r) || is_eq(in, v, r); }

bool names_filter(Interpreter&, const Value& v, const Args&) {
  return v.is(Kind::kString) && is_known_filter(v.as_text().bytes);
}
bool names_test(Interpreter&, const Value& v, const Args&) {
  return v.is(Kind::kString) && is_known_test(v.as_text().bytes);
}

const std::unordered_map<std::string_view, Test>& tests() {
  static const auto* kTests = new std::unordered_map<std::string_view, Test>{
      {"odd", is_odd}, {"even", is_even}, {"divisibleby", is_divisible}, {"defined", is_defined},
      {"undefined", is_undefined}, {"none", is_none}, {"boolean", is_boolean}, {"true", is_true},
      {"false", is_false}, {"integer", is_integer}, {"float", is_float}, {"number", is_number},
      {"string", is_string}, {"mapping", is_mapping}, {"sequence", is_sequence}, {"iterable", is_iterable},
      {"callable", is_callable}, {"escaped", is_escaped}, {"lower", has_case<false>}, {"upper", has_case<true>},
      {"sameas", is_same}, {"in", is_in}, {"filter", names_filter}, {"test", names_test}, {"==", is_eq},
      {"eq", is_eq}, {"equalto", is_eq}, {"!=", is_ne}, {"ne", is_ne}, {">", is_gt}, {"gt", is_gt},
      {"greaterthan", is_gt}, {"ge", is_ge}, {">=", is_ge}, {"<", is_lt}, {"lt", is_lt}, {"lessthan", is_lt},
      {"<=", is_le}, {"le", is_le},
  };
  return *kTests;
}

}  // namespace

bool is_known_test(const std::string& name) { return tests().count(name) > 0; }

bool run_test(Interpreter& interpreter, const std::string& name, Args& args) {
  const auto it = tests().find(name);
  if (it == tests().end()) fail_type("No test named " + repr_string(name) + ".");
  Args rest;
  rest.positional.assign(args.positional.begin() + 1, args.positional.end());
  rest.named = args.named;
  return it->second(interpreter, args.positional[0], rest);
}

}  // namespace tandem::jinja
