// What templates can call: filters, tests, global functions, methods; and how those read their arguments.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "jinja/value.h"

namespace tandem::jinja {

// Arguments bound to parameter names. Throws RenderError for missing, surplus and unknown ones.
class Params {
 public:
  Params(std::string function, const Args& args, std::initializer_list<const char*> names, size_t required);
  const Value* get(size_t i) const { return values_[i]; }  // null: not given
  const Value& at(size_t i) const { return *values_[i]; }  // required ones only
  bool has(size_t i) const { return values_[i] != nullptr; }
  int64_t integer(size_t i, int64_t otherwise) const;
  bool flag(size_t i, bool otherwise) const;
  // Must be a string when given.
  const Text& text(size_t i, const Text& otherwise) const;
  const Text& text(size_t i) const;

 private:
  [[noreturn]] void fail_type(size_t i, const char* wanted) const;
  std::string function_;
  std::vector<const char*> names_;
  std::vector<const Value*> values_;
};

using Function = Value (*)(Interpreter& interpreter, Args& args);
using FunctionTable = std::unordered_map<std::string_view, Function>;

const FunctionTable& text_filters();
const FunctionTable& list_filters();
const FunctionTable& number_filters();
bool is_known_filter(const std::string& name);
bool is_known_test(const std::string& name);
bool run_test(Interpreter& interpreter, const std::string& name, Args& args);

void add_globals(std::unordered_map<std::string, Value>* variables);
// Method of a string, or null. `args` come without the string.
using TextMethod = Value (*)(Interpreter& interpreter, const Text& self, Args& args);
TextMethod find_text_method(const std::string& name);

// What cycler() makes.
struct Cycler : Callable {
  std::vector<Value> items;
  size_t position = 0;
  Value call(Interpreter& interpreter, Args& args) override;
  std::string repr() const override;
  bool attribute(const std::string& name, const Value& self, Value* out) const;
};

Value make_function(const char* name, Function function);
// Throws what using an undefined value reports.
[[noreturn]] void fail_undefined(const Value& value);
[[noreturn]] void fail_type(const std::string& message);
Value missing_attribute(const Value& object, const std::string& name);

// `a op b`; op is one of + - * / // % **.
Value binary_operation(const std::string& op, const Value& a, const Value& b, Budget& budget);
// `needle in haystack`.
bool contains(const Value& haystack, const Value& needle, Budget& budget);
// Text operations that filters and methods share; all keep provenance.
TextPtr escape_html(const Text& text, Budget& budget);
TextPtr strip_text(const Text& text, const Text* chars, bool left, bool right, Budget& budget);
TextPtr replace_text(const Text& text, const Text& from, const Text& to, int64_t count, Budget& budget);
TextPtr map_case(const Text& text, const char* how, Budget& budget);  // "upper", "lower", "title", "capitalize", "swapcase"
TextPtr join_texts(const std::vector<Value>& items, const Text& separator, Budget& budget);
TextPtr percent_format(const Text& format, const Value& values, Budget& budget);
TextPtr brace_format(Interpreter& interpreter, const Text& format, const Args& args);
// Byte offset of `needle` at or after `from`, or npos. Linear.
size_t find_bytes(std::string_view haystack, std::string_view needle, size_t from);
TextPtr to_json(const Value& value, const Params& params, Budget& budget);

}  // namespace tandem::jinja
