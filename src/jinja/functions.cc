// How arguments are bound, and the global functions.
#include <ctime>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"

namespace tandem::jinja {

Params::Params(std::string function, const Args& args, std::initializer_list<const char*> names, size_t required)
    : function_(std::move(function)), names_(names), values_(names.size(), nullptr) {
  if (args.positional.size() > names_.size()) {
    jinja::fail_type(function_ + "() takes at most " + std::to_string(names_.size()) + " arguments (" +
                     std::to_string(args.positional.size()) + " given)");
  }
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < names_.size() && name != names_[i]) ++i;
    if (i == names_.size()) {
      jinja::fail_type(function_ + "() got an unexpected keyword argument " + repr_string(name));
    }
    if (values_[i] != nullptr) jinja::fail_type(function_ + "() got multiple values for argument " + repr_string(name));
    values_[i] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) {
      jinja::fail_type(function_ + "() missing required argument " + repr_string(names_[i]));
    }
  }
}

void Params::fail_type(size_t i, const char* wanted) const {
  if (at(i).is(Kind::kUndefined)) fail_undefined(at(i));
  jinja::fail_type(function_ + "() argument " + repr_string(names_[i]) + " must be " + wanted + ", not " +
                   type_name(at(i)));
}

int64_t Params::integer(size_t i, int64_t otherwise) const {
  if (!has(i) || at(i).is(Kind::kNone)) return otherwise;
  if (!at(i).is_integral()) fail_type(i, "int");
  return at(i).as_int();
}

bool Params::flag(size_t i, bool otherwise) const { return has(i) ? truthy(at(i)) : otherwise; }

const Text& Params::text(size_t i) const {
  if (!at(i).is(Kind::kString)) fail_type(i, "str");
  return at(i).as_text();
}

const Text& Params::text(size_t i, const Text& otherwise) const { return has(i) ? text(i) : otherwise; }

namespace {

// As jinja2's sandbox.
constexpr int64_t kMaxRange = 100'000;

struct GlobalFunction : Callable {
  GlobalFunction(const char* n, Function f) : name(n), function(f) {}
  Value call(Interpreter& interpreter, Args& args) override { return function(interpreter, args); }
  std::string repr() const override { return std::string("<function ") + name + ">"; }
  const char* name;
  Function function;
};

Value range_function(Interpreter& in, Args& args) {
  const Params params("range", args, {"start", "stop", "step"}, 1);
  for (size_t i = 0; i < 3; ++i) {
    if (params.has(i) && params.at(i).is(Kind::kNone)) fail_type("'NoneType' object cannot be interpreted as an integer");
  }
  const bool has_stop = params.has(1);
  const int64_t start = has_stop ? params.integer(0, 0) : 0;
  const int64_t stop = params.integer(has_stop ? 1 : 0, 0);
  const int64_t step = params.integer(2, 1);
  if (step == 0) fail_type("range() arg 3 must not be zero");
  const bool is_empty = step > 0 ? start >= stop : start <= stop;
  const auto distance = is_empty ? 0 : step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                                : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const uint64_t count = distance == 0 ? 0 : (distance - 1) / stride + 1;
  if (count > static_cast<uint64_t>(kMaxRange)) {
    fail_type("Range too big. The sandbox blocks ranges larger than MAX_RANGE (" + std::to_string(kMaxRange) + ").");
  }
  std::vector<Value> items;
  int64_t at = start;
  for (uint64_t i = 0; i < count; ++i) {
    items.push_back(Value::integer(at));
    if (i + 1 < count) at += step;
  }
  std::string label = "range(" + std::to_string(start) + ", " + std::to_string(stop);
  if (step != 1) label += ", " + std::to_string(step);
  return make_sequence(Kind::kRange, std::move(items), in.budget(), label + ")");
}

Value dict_function(Interpreter& in, Args& args) {
  auto dict = std::make_shared<Dict>();
  for (const Value& source : args.positional) {
    if (source.is(Kind::kDict)) {
      for (const auto& [key, value] : source.as_dict().items) dict->set(key, hash_key(key, in.budget()), value);
      continue;
    }
    for (const Value& pair : iterate(source, in.budget())) {
      const std::vector<Value> parts = iterate(pair, in.budget());
      if (parts.size() != 2) fail_type("dictionary update sequence elements must have length 2");
      dict->set(parts[0], hash_key(parts[0], in.budget()), parts[1]);
    }
  }
  for (const auto& [name, value] : args.named) dict->set(Value::text(name), "s" + name, value);
  return make_dict(std::move(dict), in.budget());
}

Value namespace_function(Interpreter& in, Args& args) { return in.make_namespace(args); }

Value raise_exception(Interpreter& in, Args& args) {
  const Params params("raise_exception", args, {"message"}, 1);
  RenderError error{to_text(params.at(0), in.budget())->bytes};
  error.is_raised = true;
  throw error;
}

Value strftime_now(Interpreter& in, Args& args) {
  const Params params("strftime_now", args, {"format"}, 1);
  const std::string& format = params.text(0).bytes;
  if (format.size() > 200) fail_type("strftime_now() format is longer than 200 bytes");
  const std::time_t now = static_cast<std::time_t>(in.now_s());
  std::tm parts{};
  localtime_r(&now, &parts);
  char buffer[4096];
  const size_t n = std::strftime(buffer, sizeof buffer, format.c_str(), &parts);
  return Value::text(std::string_view(buffer, n));
}

struct Joiner : Callable {
  explicit Joiner(Value s) : separator(std::move(s)) {}
  Value call(Interpreter&, Args&) override { return std::exchange(is_used, true) ? separator : Value::text(""); }
  std::string repr() const override { return "<Joiner>"; }
  Value separator;
  bool is_used = false;
};

Value joiner_function(Interpreter& in, Args& args) {
  const Params params("joiner", args, {"sep"}, 0);
  const Value separator = params.has(0) ? params.at(0) : Value::text(", ");
  return in.holder(std::make_shared<Joiner>(separator), separator.depth());
}

Value cycler_function(Interpreter& in, Args& args) {
  if (args.positional.empty()) fail_type("at least one item has to be provided");
  auto cycler = std::make_shared<Cycler>();
  int deepest = 0;
  for (const Value& item : args.positional) deepest = std::max(deepest, item.depth());
  cycler->items = std::move(args.positional);
  return in.holder(std::move(cycler), deepest);
}

struct CyclerMethod : Callable {
  CyclerMethod(std::shared_ptr<Object> c, bool next) : cycler(std::move(c)), is_next(next) {}
  Value call(Interpreter&, Args&) override {
    Cycler& self = static_cast<Cycler&>(*cycler);
    if (!is_next) {
      self.position = 0;
      return Value::none();
    }
    const Value item = self.items[self.position];
    self.position = (self.position + 1) % self.items.size();
    return item;
  }
  std::string repr() const override { return "<bound method of Cycler>"; }
  std::shared_ptr<Object> cycler;
  bool is_next;
};

}  // namespace

Value Cycler::call(Interpreter&, Args&) { fail_type("'Cycler' object is not callable"); }
std::string Cycler::repr() const { return "<Cycler>"; }

bool Cycler::attribute(const std::string& name, const Value& self, Value* out) const {
  if (name == "current") {
    *out = items[position];
  } else if (name == "next" || name == "reset") {
    *out = Value::object(Kind::kObject, std::make_shared<CyclerMethod>(self.ref(), name == "next"), self.depth());
  } else {
    return false;
  }
  return true;
}

Value make_function(const char* name, Function function) {
  return Value::object(Kind::kObject, std::make_shared<GlobalFunction>(name, function));
}

void add_globals(std::unordered_map<std::string, Value>* variables) {
  struct Entry {
    const char* name;
    Function function;
  };
  static constexpr Entry kGlobals[] = {
      {"range", range_function}, {"dict", dict_function}, {"namespace", namespace_function},
      {"raise_exception", raise_exception}, {"strftime_now", strftime_now}, {"joiner", joiner_function},
      {"cycler", cycler_function},
  };
  for (const Entry& entry : kGlobals) (*variables)[entry.name] = make_function(entry.name, entry.function);
}

}  // namespace tandem::jinja
