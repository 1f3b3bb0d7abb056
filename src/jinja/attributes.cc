// object.name, object[key], and the methods of dictionaries and lists. Methods that change their object are
// refused, as transformers' immutable sandbox does.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/loop.h"

namespace tandem::jinja {
namespace {

using DictMethod = Value (*)(const Value& self, Interpreter& interpreter, Args& args);

Value dict_keys(const Value& self, Interpreter& interpreter, Args& args) {
  const Params params("keys", args, {}, 0);
  return make_sequence(Kind::kView, iterate(self, interpreter.budget()), interpreter.budget(), "dict_keys");
}

Value dict_values(const Value& self, Interpreter& interpreter, Args& args) {
  const Params params("values", args, {}, 0);
  std::vector<Value> values;
  for (const auto& [key, value] : self.as_dict().items) values.push_back(value);
  return make_sequence(Kind::kView, std::move(values), interpreter.budget(), "dict_values");
}

Value dict_items(const Value& self, Interpreter& interpreter, Args& args) {
  const Params params("items", args, {}, 0);
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.as_dict().items) {
    pairs.push_back(make_sequence(Kind::kTuple, {key, value}, interpreter.budget()));
  }
  return make_sequence(Kind::kView, std::move(pairs), interpreter.budget(), "dict_items");
}

Value dict_get(const Value& self, Interpreter& interpreter, Args& args) {
  const Params params("get", args, {"key", "default"}, 1);
  const Value* found = self.as_dict().find_key(hash_key(params.at(0), interpreter.budget()));
  if (found != nullptr) return *found;
  return params.has(1) ? params.at(1) : Value::none();
}

Value dict_copy(const Value& self, Interpreter&, Args& args) {
  const Params params("copy", args, {}, 0);
  return self;  // values are immutable
}

Value list_index(const Value& self, Interpreter& interpreter, Args& args) {
  const Params params("index", args, {"value", "start"}, 1);
  const auto& items = self.as_sequence().items;
  int64_t start = params.integer(1, 0);
  if (start < 0) start = std::max<int64_t>(0, start + static_cast<int64_t>(items.size()));
  for (size_t i = static_cast<size_t>(start); i < items.size(); ++i) {
    if (equal(items[i], params.at(0), interpreter.budget())) return Value::integer(static_cast<int64_t>(i));
  }
  TextBuilder message(interpreter.budget());
  append_repr(params.at(0), message);
  fail_type(message.take().bytes + " is not in " + type_name(self));
}

Value list_count(const Value& self, Interpreter& interpreter, Args& args) {
  const Params params("count", args, {"value"}, 1);
  int64_t n = 0;
  for (const Value& item : self.as_sequence().items) n += equal(item, params.at(0), interpreter.budget()) ? 1 : 0;
  return Value::integer(n);
}

struct NamedMethod {
  const char* name;
  DictMethod method;
};
constexpr NamedMethod kDictMethods[] = {
    {"keys", dict_keys}, {"values", dict_values}, {"items", dict_items}, {"get", dict_get}, {"copy", dict_copy}};
constexpr NamedMethod kListMethods[] = {{"index", list_index}, {"count", list_count}, {"copy", dict_copy}};
constexpr const char* kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr const char* kListChanges[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};

struct BoundMethod : Callable {
  BoundMethod(Value s, const NamedMethod* m) : self(std::move(s)), method(m) {}
  Value call(Interpreter& interpreter, Args& args) override { return method->method(self, interpreter, args); }
  std::string repr() const override {
    return std::string("<built-in method ") + method->name + " of " + type_name(self) + " object>";
  }
  Value self;
  const NamedMethod* method;
};

struct BoundTextMethod : Callable {
  BoundTextMethod(Value s, std::string n, TextMethod m) : self(std::move(s)), name(std::move(n)), method(m) {}
  Value call(Interpreter& interpreter, Args& args) override { return method(interpreter, self.as_text(), args); }
  std::string repr() const override { return "<built-in method " + name + " of str object>"; }
  Value self;
  std::string name;
  TextMethod method;
};

Value method_of(const Value& object, const std::string& name, Interpreter& interpreter, bool* found) {
  *found = true;
  if (object.is(Kind::kString)) {
    if (const TextMethod method = find_text_method(name)) {
      return Value::object(Kind::kObject, std::make_shared<BoundTextMethod>(object, name, method));
    }
  }
  const auto bind = [&](const auto& methods, const auto& changes) -> Value {
    for (const NamedMethod& m : methods) {
      if (name == m.name) return interpreter.holder(std::make_shared<BoundMethod>(object, &m), object.depth());
    }
    for (const char* change : changes) {
      if (name == change) {
        return Value::undefined("access to attribute " + repr_string(name) + " of " + repr_string(type_name(object)) +
                                " object is unsafe.");
      }
    }
    *found = false;
    return {};
  };
  if (object.is(Kind::kDict)) return bind(kDictMethods, kDictChanges);
  if (object.is(Kind::kList) || object.is(Kind::kTuple)) return bind(kListMethods, kListChanges);
  *found = false;
  return {};
}

// What [] finds without looking at attributes; null when there is nothing.
bool subscript(const Value& object, const Value& key, Budget& budget, Value* out) {
  if (object.is(Kind::kDict)) {
    const bool hashable = !key.is(Kind::kList) && !key.is(Kind::kDict) && !key.is(Kind::kView);
    const Value* found = hashable ? object.as_dict().find_key(hash_key(key, budget)) : nullptr;
    if (found != nullptr) *out = *found;
    return found != nullptr;
  }
  if (!key.is_integral()) return false;
  int64_t at = key.as_int();
  if (object.is(Kind::kString)) {
    const Text& text = object.as_text();
    if (at < 0) at += text.length;
    if (at < 0 || at >= text.length) return false;
    const size_t begin = byte_offset(text, at, budget);
    size_t end = begin + 1;
    if (!text.is_ascii()) end = byte_offset(text, at + 1, budget);
    *out = Value::text(sub_text(text, begin, end, budget));
    return true;
  }
  if (!object.is(Kind::kList) && !object.is(Kind::kTuple) && !object.is(Kind::kRange)) return false;
  const auto& items = object.as_sequence().items;
  if (at < 0) at += static_cast<int64_t>(items.size());
  if (at < 0 || at >= static_cast<int64_t>(items.size())) return false;
  *out = items[static_cast<size_t>(at)];
  return true;
}

// Attributes that are neither methods nor items.
bool special_attribute(const Value& object, const std::string& name, Value* out) {
  if (auto* loop = object.object_as<Loop>()) {
    *out = loop->attribute(name, object);
    return true;
  }
  if (auto* space = object.object_as<Namespace>()) {
    const auto it = space->attributes.find(name);
    if (it == space->attributes.end()) return false;
    *out = it->second;
    return true;
  }
  if (const auto* cycler = object.object_as<Cycler>()) return cycler->attribute(name, object, out);
  if (object.is(Kind::kTuple) && object.as_sequence().label == "group") {
    if (name != "grouper" && name != "list") return false;
    *out = object.as_sequence().items[name == "list" ? 1 : 0];
    return true;
  }
  return false;
}

}  // namespace

void fail_undefined(const Value& value) {
  const auto* undefined = value.object_as<Undefined>();
  throw RenderError{undefined != nullptr ? undefined->message : "value is undefined"};
}

void fail_type(const std::string& message) { throw RenderError{message}; }

Value missing_attribute(const Value& object, const std::string& name) {
  std::string type = std::string(type_name(object)) + " object";
  if (object.is(Kind::kNone)) type = "None";
  if (object.is(Kind::kNamespace)) type = "jinja2.utils.Namespace object";
  return Value::undefined(repr_string(type) + " has no attribute " + repr_string(name));
}

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is(Kind::kUndefined)) fail_undefined(object);
  Value value;
  if (special_attribute(object, name, &value)) return value;
  bool found = false;
  value = method_of(object, name, *this, &found);
  if (found) return value;
  if (object.is(Kind::kDict)) {
    if (const Value* item = object.as_dict().find(name)) return *item;
  }
  return missing_attribute(object, name);
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is(Kind::kUndefined)) fail_undefined(object);
  if (key.is(Kind::kUndefined) && !object.is(Kind::kDict)) fail_undefined(key);
  Value value;
  if (subscript(object, key, budget_, &value)) return value;
  if (key.is(Kind::kString)) {
    const std::string& name = key.as_text().bytes;
    bool found = special_attribute(object, name, &value);
    if (found) return value;
    value = method_of(object, name, *this, &found);
    return found ? value : missing_attribute(object, name);
  }
  TextBuilder shown(budget_);
  append_repr(key, shown);
  const std::string type = object.is(Kind::kNone) ? "None" : std::string(type_name(object)) + " object";
  return Value::undefined(type + " has no element " + shown.take().bytes);
}

}  // namespace tandem::jinja
