#include "jinja/value.h"

#include <algorithm>

#include "base/check.h"
#include "jinja/unicode.h"

namespace tandem::jinja {

Value Value::boolean(bool b) {
  Value v(Kind::kBool);
  v.integer_ = b ? 1 : 0;
  return v;
}

Value Value::integer(int64_t i) {
  Value v(Kind::kInt);
  v.integer_ = i;
  return v;
}

Value Value::real(double d) {
  Value v(Kind::kFloat);
  v.real_ = d;
  return v;
}

Value Value::text(TextPtr t) {
  Value v(Kind::kString);
  v.text_ = std::move(t);
  return v;
}

Value Value::text(std::string_view bytes, bool from_input) { return text(make_text(bytes, from_input)); }

Value Value::list(std::vector<Value> items) { return sequence(Kind::kList, std::move(items)); }

Value Value::sequence(Kind kind, std::vector<Value> items, std::string label) {
  Value v(kind);
  for (const Value& item : items) v.depth_ = std::max(v.depth_, item.depth_);
  ++v.depth_;
  auto sequence = std::make_shared<Sequence>();
  sequence->items = std::move(items);
  sequence->label = std::move(label);
  v.object_ = std::move(sequence);
  return v;
}

Value Value::dict(std::vector<std::pair<std::string, Value>> items) {
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : items) dict->set(Value::text(key), "s" + key, std::move(value));
  return object(Kind::kDict, std::move(dict));
}

Value Value::object(Kind kind, std::shared_ptr<Object> object, int depth) {
  Value v(kind);
  v.depth_ = depth;
  if (kind == Kind::kDict) {
    for (const auto& [key, value] : static_cast<Dict&>(*object).items) {
      v.depth_ = std::max({v.depth_, key.depth_, value.depth_});
    }
    ++v.depth_;
  }
  v.object_ = std::move(object);
  return v;
}

Value Value::undefined(std::string message) {
  Value v;
  auto undefined = std::make_shared<Undefined>();
  undefined->message = std::move(message);
  v.object_ = std::move(undefined);
  return v;
}

const Text& Value::as_text() const {
  CHECK(text_ != nullptr);
  return *text_;
}

Sequence& Value::as_sequence() const {
  CHECK(is_sequence());
  return static_cast<Sequence&>(*object_);
}

Dict& Value::as_dict() const {
  CHECK(kind_ == Kind::kDict);
  return static_cast<Dict&>(*object_);
}

const Value* Dict::find(const std::string& name) const { return find_key("s" + name); }

const Value* Dict::find_key(const std::string& canonical) const {
  const auto it = index.find(canonical);
  return it == index.end() ? nullptr : &items[it->second].second;
}

void Dict::set(const Value& key, const std::string& canonical, Value value) {
  const auto [it, is_new] = index.emplace(canonical, items.size());
  if (is_new) {
    items.emplace_back(key, std::move(value));
  } else {
    items[it->second].second = std::move(value);
  }
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return value.as_text().is_markup ? "Markup" : "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kRange: return "range";
    case Kind::kView: return value.as_sequence().label.c_str();
    case Kind::kGenerator: return "generator";
    case Kind::kDict: return "dict";
    case Kind::kNamespace: return "Namespace";
    case Kind::kObject: return "function";
  }
  return "object";
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInt: return value.as_int() != 0;
    case Kind::kFloat: return value.as_real() != 0;
    case Kind::kString: return !value.as_text().bytes.empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView: return !value.as_sequence().items.empty();
    case Kind::kDict: return !value.as_dict().items.empty();
    case Kind::kGenerator:
    case Kind::kNamespace:
    case Kind::kObject: return true;
  }
  return true;
}

Value make_sequence(Kind kind, std::vector<Value> items, Budget& budget, std::string label) {
  budget.check_items(items.size());
  budget.charge(static_cast<int64_t>(items.size() / 4));
  Value value = Value::sequence(kind, std::move(items), std::move(label));
  if (value.depth() > budget.max_depth) {
    throw RenderError{"values are nested deeper than max_depth = " + std::to_string(budget.max_depth)};
  }
  return value;
}

Value make_dict(std::shared_ptr<Dict> dict, Budget& budget) {
  budget.check_items(dict->items.size());
  Value value = Value::object(Kind::kDict, std::move(dict));
  if (value.depth() > budget.max_depth) {
    throw RenderError{"values are nested deeper than max_depth = " + std::to_string(budget.max_depth)};
  }
  return value;
}

namespace {

std::vector<Value> characters(const Text& text, Budget& budget) {
  budget.check_items(static_cast<size_t>(text.length));
  budget.charge(text.length / 4);
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(text.length));
  SpanCursor spans(text);
  const std::string_view bytes = text.bytes;
  for (size_t at = 0; at < bytes.size();) {
    size_t length = 0;
    decode(bytes, at, &length);
    items.push_back(Value::text(bytes.substr(at, length), spans.from_input(at)));
    at += length;
  }
  return items;
}

}  // namespace

std::vector<Value> iterate(const Value& value, Budget& budget) {
  switch (value.kind()) {
    case Kind::kUndefined: return {};
    case Kind::kString: return characters(value.as_text(), budget);
    case Kind::kGenerator: {
      Sequence& sequence = value.as_sequence();
      std::vector<Value> rest(sequence.items.begin() + static_cast<std::ptrdiff_t>(sequence.position),
                              sequence.items.end());
      sequence.position = sequence.items.size();
      budget.charge(static_cast<int64_t>(rest.size() / 4));
      return rest;
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      budget.charge(static_cast<int64_t>(value.as_sequence().items.size() / 4));
      return value.as_sequence().items;
    case Kind::kDict: {
      std::vector<Value> keys;
      budget.charge(static_cast<int64_t>(value.as_dict().items.size() / 4));
      for (const auto& [key, unused] : value.as_dict().items) keys.push_back(key);
      return keys;
    }
    default:
      throw RenderError{std::string("'") + type_name(value) + "' object is not iterable"};
  }
}

}  // namespace tandem::jinja
