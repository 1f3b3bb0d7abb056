// Filters that give numbers.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"

namespace tandem::jinja {
namespace {

std::string stripped(const Value& value, Budget& budget) {
  return strip_text(value.as_text(), nullptr, true, true, budget)->bytes;
}

// Removes single underscores between digits; false when one stands elsewhere.
bool drop_underscores(std::string* text) {
  std::string out;
  for (size_t i = 0; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c != '_') {
      out.push_back(c);
      continue;
    }
    const bool between = i > 0 && i + 1 < text->size() && std::isalnum(static_cast<unsigned char>((*text)[i - 1])) &&
                         std::isalnum(static_cast<unsigned char>((*text)[i + 1]));
    if (!between) return false;
  }
  *text = out;
  return true;
}

bool parse_float(std::string text, double* out) {
  if (!drop_underscores(&text) || text.empty()) return false;
  for (const char c : text) {
    if (c == 'x' || c == 'X' || c == 'p' || c == 'P' || c == '(') return false;  // strtod takes more than Python
  }
  char* end = nullptr;
  *out = std::strtod(text.c_str(), &end);
  return end == text.c_str() + text.size();
}

bool parse_integer(std::string text, int base, int64_t* out) {
  if (!drop_underscores(&text) || text.empty()) return false;
  const size_t sign = text[0] == '-' || text[0] == '+' ? 1 : 0;
  if (sign + 1 < text.size() && text[sign] == '0') {
    const char mark = static_cast<char>(text[sign + 1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      text.erase(sign, 2);
      base = marked;
    }
  }
  if (sign >= text.size() || !std::isalnum(static_cast<unsigned char>(text[sign]))) return false;
  if (base == 16 && text.find_first_of("xX") != std::string::npos) return false;
  char* end = nullptr;
  errno = 0;
  *out = std::strtoll(text.c_str(), &end, base == 0 ? 10 : base);
  if (end != text.c_str() + text.size()) return false;
  if (errno == ERANGE) throw RenderError{"integer " + text.substr(0, 40) + " does not fit in 64 bits"};
  return true;
}

bool to_integer(double d, int64_t* out) {
  if (std::isnan(d) || std::isinf(d)) return false;
  if (std::fabs(d) >= 9.2e18) throw RenderError{"number does not fit in 64 bits"};
  *out = static_cast<int64_t>(d);
  return true;
}

Value int_filter(Interpreter& in, Args& args) {
  const Params params("int", args, {"value", "default", "base"}, 1);
  const Value& value = params.at(0);
  int64_t result = 0;
  double real = 0;
  if (value.is_integral()) return Value::integer(value.as_int());
  if (value.is(Kind::kFloat) && to_integer(value.as_real(), &result)) return Value::integer(result);
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (value.is(Kind::kString)) {
    const int64_t base = params.integer(2, 10);
    if (base != 0 && (base < 2 || base > 36)) fail_type("int() base must be >= 2 and <= 36, or 0");
    const std::string text = stripped(value, in.budget());
    if (parse_integer(text, static_cast<int>(base), &result)) return Value::integer(result);
    if (parse_float(text, &real) && to_integer(real, &result)) return Value::integer(result);
  }
  return params.has(1) ? params.at(1) : Value::integer(0);
}

Value float_filter(Interpreter& in, Args& args) {
  const Params params("float", args, {"value", "default"}, 1);
  const Value& value = params.at(0);
  double result = 0;
  if (value.is_number()) return Value::real(value.as_real());
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (value.is(Kind::kString) && parse_float(stripped(value, in.budget()), &result)) return Value::real(result);
  return params.has(1) ? params.at(1) : Value::real(0);
}

Value abs_filter(Interpreter& in, Args& args) {
  const Params params("abs", args, {"x"}, 1);
  const Value& value = params.at(0);
  if (value.is(Kind::kFloat)) return Value::real(std::fabs(value.as_real()));
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (!value.is_integral()) fail_type(std::string("bad operand type for abs(): '") + type_name(value) + "'");
  if (value.as_int() >= 0) return Value::integer(value.as_int());
  return binary_operation("-", Value::integer(0), value, in.budget());
}

// Python rounds the exact decimal value, half to even; printf does the same.
double round_decimals(double value, int64_t precision) {
  if (std::isnan(value) || std::isinf(value) || precision > 300) return value;
  if (precision >= 0) {
    char buffer[700];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value);
    return std::strtod(buffer, nullptr);
  }
  if (precision < -308) return 0;
  const double scale = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(value / scale) * scale;
}

Value round_filter(Interpreter&, Args& args) {
  const Params params("round", args, {"value", "precision", "method"}, 1);
  const Value& value = params.at(0);
  const std::string method = params.has(2) ? params.text(2).bytes : "common";
  const int64_t precision = params.integer(1, 0);
  if (method != "common" && method != "ceil" && method != "floor") {
    fail_type("method must be common, ceil or floor");
  }
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (!value.is_number()) fail_type(std::string("type ") + type_name(value) + " doesn't define __round__ method");
  if (method == "common") {
    if (!value.is_integral()) return Value::real(round_decimals(value.as_real(), precision));
    if (precision >= 0) return Value::integer(value.as_int());
    return Value::integer(static_cast<int64_t>(round_decimals(value.as_real(), precision)));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.as_real() * scale;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

}  // namespace

const FunctionTable& number_filters() {
  static const auto* kFilters =
      new FunctionTable{{"int", int_filter}, {"float", float_filter}, {"abs", abs_filter}, {"round", round_filter}};
  return *kFilters;
}

}  // namespace tandem::jinja
