// Arithmetic, concatenation, repetition and membership, as Python has them. Integers have 64 bits here: an
// operation that would need more is an error.
#include <cmath>

#include "jinja/builtins.h"

namespace tandem::jinja {
namespace {

[[noreturn]] void fail_overflow() { throw RenderError{"integer result does not fit in 64 bits"}; }

[[noreturn]] void fail_operands(const std::string& op, const Value& a, const Value& b) {
  if (a.is(Kind::kUndefined)) fail_undefined(a);
  if (b.is(Kind::kUndefined)) fail_undefined(b);
  fail_type("unsupported operand type(s) for " + op + ": '" + type_name(a) + "' and '" + type_name(b) + "'");
}

int64_t floor_mod(int64_t a, int64_t b) {
  if (b == -1) return 0;  // INT64_MIN % -1 traps
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t floor_div(int64_t a, int64_t b) {
  if (b == -1) {
    if (a == INT64_MIN) fail_overflow();
    return -a;
  }
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return Value::integer(result);
}

Value integer_operation(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "**") return integer_power(a, b);
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else {
    if (b == 0) fail_type(op == "/" ? "division by zero" : op == "%" ? "integer modulo by zero" : "integer division or modulo by zero");
    if (op == "/") return Value::real(static_cast<double>(a) / static_cast<double>(b));
    result = op == "//" ? floor_div(a, b) : floor_mod(a, b);
  }
  if (overflow) fail_overflow();
  return Value::integer(result);
}

double real_mod(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value real_operation(const std::string& op, double a, double b) {
  if (op == "+") return Value::real(a + b);
  if (op == "-") return Value::real(a - b);
  if (op == "*") return Value::real(a * b);
  if (op == "**") return Value::real(std::pow(a, b));
  if (b == 0) fail_type(op == "/" ? "float division by zero" : op == "%" ? "float modulo" : "float floor division by zero");
  if (op == "/") return Value::real(a / b);
  if (op == "%") return Value::real(real_mod(a, b));
  return Value::real(std::floor((a - real_mod(a, b)) / b + 0.5));
}

Value add_texts(const Text& a, const Text& b, Budget& budget) {
  TextBuilder out(budget);
  const bool markup = a.is_markup || b.is_markup;
  out.append(markup && !a.is_markup ? *escape_html(a, budget) : a);
  out.append(markup && !b.is_markup ? *escape_html(b, budget) : b);
  if (!markup) return Value::text(out.finish());
  auto text = std::make_shared<Text>(*out.finish());
  text->is_markup = true;
  return Value::text(text);
}

Value add_lists(const Value& a, const Value& b, Budget& budget) {
  std::vector<Value> items = a.as_sequence().items;
  const auto& more = b.as_sequence().items;
  budget.check_items(items.size() + more.size());
  budget.charge(static_cast<int64_t>((items.size() + more.size()) / 4));
  items.insert(items.end(), more.begin(), more.end());
  return make_sequence(a.kind(), std::move(items), budget);
}

Value repeat_list(const Value& list, int64_t times, Budget& budget) {
  const auto& items = list.as_sequence().items;
  std::vector<Value> out;
  if (times > 0 && !items.empty()) {
    if (times > budget.max_items / static_cast<int64_t>(items.size())) budget.fail_items();
    budget.charge(static_cast<int64_t>(items.size()) * times / 4);
    for (int64_t i = 0; i < times; ++i) out.insert(out.end(), items.begin(), items.end());
  }
  return make_sequence(list.kind(), std::move(out), budget);
}

bool is_list(const Value& v) { return v.is(Kind::kList) || v.is(Kind::kTuple); }

}  // namespace

Value binary_operation(const std::string& op, const Value& a, const Value& b, Budget& budget) {
  if (a.is_integral() && b.is_integral()) return integer_operation(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return real_operation(op, a.as_real(), b.as_real());
  if (op == "+") {
    if (a.is(Kind::kString) && b.is(Kind::kString)) return add_texts(a.as_text(), b.as_text(), budget);
    if (is_list(a) && a.kind() == b.kind()) return add_lists(a, b, budget);
    if (a.is(Kind::kString) && !b.is(Kind::kUndefined)) {
      fail_type(std::string("can only concatenate str (not \"") + type_name(b) + "\") to str");
    }
  }
  if (op == "*") {
    const Value& container = a.is_integral() ? b : a;
    const Value& times = a.is_integral() ? a : b;
    if (times.is_integral() && container.is(Kind::kString)) {
      TextBuilder out(budget);
      out.append_repeated(container.as_text(), times.as_int());
      return Value::text(out.finish());
    }
    if (times.is_integral() && is_list(container)) return repeat_list(container, times.as_int(), budget);
  }
  if (op == "%" && a.is(Kind::kString)) return Value::text(percent_format(a.as_text(), b, budget));
  fail_operands(op, a, b);
}

bool contains(const Value& haystack, const Value& needle, Budget& budget) {
  if (haystack.is(Kind::kString)) {
    if (!needle.is(Kind::kString)) {
      fail_type(std::string("'in <string>' requires string as left operand, not ") + type_name(needle));
    }
    budget.charge_bytes(haystack.as_text().bytes.size());
    return find_bytes(haystack.as_text().bytes, needle.as_text().bytes, 0) != std::string::npos;
  }
  if (haystack.is(Kind::kDict)) return haystack.as_dict().find_key(hash_key(needle, budget)) != nullptr;
  if (haystack.is(Kind::kUndefined)) return false;
  if (!haystack.is_sequence()) {
    fail_type(std::string("argument of type '") + type_name(haystack) + "' is not iterable");
  }
  for (const Value& item : iterate(haystack, budget)) {
    if (equal(item, needle, budget)) return true;
  }
  return false;
}

}  // namespace tandem::jinja
