// Values of templates: Python's, as far as templates see them. All are immutable except Namespace and the
// position of a generator. Values are shared by reference and may be read by many threads, unless they hold
// a namespace, a generator or a macro, which never leave one rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jinja/text.h"

namespace tandem::jinja {

class Interpreter;
struct Args;

enum class Kind {
  kUndefined, kNone, kBool, kInt, kFloat, kString,
  kList, kTuple, kRange, kView, kGenerator,  // all are Sequence
  kDict, kNamespace, kObject,
};

// Anything shared behind a Value.
struct Object {
  virtual ~Object() = default;
};

class Value {
 public:
  Value() = default;  // undefined, without a name
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool b);
  static Value integer(int64_t i);
  static Value real(double d);
  static Value text(TextPtr t);
  static Value text(std::string_view bytes, bool from_input = false);
  static Value list(std::vector<Value> items);
  static Value sequence(Kind kind, std::vector<Value> items, std::string label = {});
  // String keys, in order; later ones win.
  static Value dict(std::vector<std::pair<std::string, Value>> items);
  // `depth`: that of what the object holds (a dict's is computed).
  static Value object(Kind kind, std::shared_ptr<Object> object, int depth = 0);
  // `message` is what using the value reports: "'x' is undefined".
  static Value undefined(std::string message);

  Kind kind() const { return kind_; }
  bool is(Kind k) const { return kind_ == k; }
  bool is_number() const { return kind_ == Kind::kInt || kind_ == Kind::kFloat || kind_ == Kind::kBool; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_sequence() const { return kind_ >= Kind::kList && kind_ <= Kind::kGenerator; }
  int64_t as_int() const { return integer_; }  // int and bool
  double as_real() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer_); }
  const Text& as_text() const;
  const TextPtr& text_ptr() const { return text_; }
  struct Sequence& as_sequence() const;
  struct Dict& as_dict() const;
  const std::shared_ptr<Object>& ref() const { return object_; }
  template <typename T>
  T* object_as() const { return dynamic_cast<T*>(object_.get()); }
  int depth() const { return depth_; }  // 0 for scalars, 1 + the deepest item for containers

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Kind kind_ = Kind::kUndefined;
  int depth_ = 0;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  TextPtr text_;
  std::shared_ptr<Object> object_;
};

struct Sequence : Object {
  std::vector<Value> items;
  std::string label;        // of a view: "dict_items"; of a range: "range(0, 3)"
  size_t position = 0;      // generators only: what was consumed
};

struct Dict : Object {
  std::vector<std::pair<Value, Value>> items;  // in insertion order
  std::unordered_map<std::string, size_t> index;  // canonical key -> place in items
  const Value* find(const std::string& name) const;  // by string key
  const Value* find_key(const std::string& canonical) const;
  void set(const Value& key, const std::string& canonical, Value value);
};

struct Undefined : Object {
  std::string message;
};

struct Namespace : Object {
  std::unordered_map<std::string, Value> attributes;
  std::vector<std::string> order;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A value with attributes or that can be called: functions, bound methods, macros, loops.
struct Callable : Object {
  virtual Value call(Interpreter& interpreter, Args& args) = 0;
  virtual std::string repr() const = 0;
};

// How "unsupported operand" messages name a type: "str", "int", "NoneType" ….
const char* type_name(const Value& value);
bool truthy(const Value& value);
// Python's == and <. `less` throws RenderError for types that have no order.
bool equal(const Value& a, const Value& b, Budget& budget);
bool less(const Value& a, const Value& b, Budget& budget);
// Key for dictionaries and sets; equal values have equal keys. Throws RenderError for unhashable values.
std::string hash_key(const Value& value, Budget& budget);
// str() and repr().
TextPtr to_text(const Value& value, Budget& budget);
void append_repr(const Value& value, TextBuilder& out);
std::string repr_string(std::string_view bytes);
std::string float_repr(double d);
// Containers whose size and nesting are checked against the budget's limits.
Value make_sequence(Kind kind, std::vector<Value> items, Budget& budget, std::string label = {});
Value make_dict(std::shared_ptr<Dict> dict, Budget& budget);
// Items of anything iterable: a consumed generator gives nothing. Throws RenderError for other values.
std::vector<Value> iterate(const Value& value, Budget& budget);

}  // namespace tandem::jinja
