// Expressions.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/unicode.h"

namespace tandem::jinja {

Value Interpreter::eval(const Expr& expr) {
  Depth depth(this);
  budget_.charge(1);
  try {
    return eval_inner(expr);
  } catch (RenderError& error) {
    if (error.line == 0) error.line = expr.line;
    throw;
  }
}

Value Interpreter::eval_inner(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst: return expr.constant;
    case ExprKind::kName: return eval_name(expr);
    case ExprKind::kTuple:
    case ExprKind::kList: return eval_items(expr);
    case ExprKind::kDict: return eval_dict(expr);
    case ExprKind::kCondition: return eval_condition(expr);
    case ExprKind::kOr: {
      Value left = eval(*expr.items[0]);
      return truthy(left) ? left : eval(*expr.items[1]);
    }
    case ExprKind::kAnd: {
      Value left = eval(*expr.items[0]);
      return truthy(left) ? eval(*expr.items[1]) : left;
    }
    case ExprKind::kNot: return Value::boolean(!truthy(eval(*expr.items[0])));
    case ExprKind::kNegate: {
      const Value value = eval(*expr.items[0]);
      if (value.is(Kind::kFloat)) return Value::real(-value.as_real());  // 0 - x would lose the sign of zero
      return binary_operation("-", Value::integer(0), value, budget_);
    }
    case ExprKind::kPlus: return binary_operation("+", Value::integer(0), eval(*expr.items[0]), budget_);
    case ExprKind::kBinary: {
      const Value left = eval(*expr.items[0]);
      return binary_operation(expr.name, left, eval(*expr.items[1]), budget_);
    }
    case ExprKind::kConcat: return eval_concat(expr);
    case ExprKind::kCompare: return eval_compare(expr);
    case ExprKind::kAttribute: return attribute(eval(*expr.items[0]), expr.name);
    case ExprKind::kItem: {
      const Value object = eval(*expr.items[0]);
      return item(object, eval(*expr.items[1]));
    }
    case ExprKind::kSlice: return eval_slice(expr);
    case ExprKind::kCall: return eval_call(expr);
    case ExprKind::kFilter: return eval_filter(expr);
    case ExprKind::kTest: return eval_test(expr);
    case ExprKind::kNamespaceTarget: break;  // never evaluated
  }
  return {};
}

Value Interpreter::eval_name(const Expr& expr) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    budget_.charge(1);
    const auto it = scope->variables.find(expr.name);
    if (it != scope->variables.end()) return it->second;
  }
  return Value::undefined(repr_string(expr.name) + " is undefined");
}

Value Interpreter::eval_items(const Expr& expr) {
  std::vector<Value> items;
  items.reserve(expr.items.size());
  for (const ExprPtr& item : expr.items) items.push_back(eval(*item));
  return make_sequence(expr.kind == ExprKind::kTuple ? Kind::kTuple : Kind::kList, std::move(items), budget_);
}

Value Interpreter::eval_dict(const Expr& expr) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i + 1 < expr.items.size(); i += 2) {
    const Value key = eval(*expr.items[i]);
    dict->set(key, hash_key(key, budget_), eval(*expr.items[i + 1]));
  }
  return make_dict(std::move(dict), budget_);
}

Value Interpreter::eval_condition(const Expr& expr) {
  if (truthy(eval(*expr.items[0]))) return eval(*expr.items[1]);
  if (expr.items[2]) return eval(*expr.items[2]);
  return Value::undefined("the inline if-expression on line " + std::to_string(expr.line) +
                          " evaluated to false and no else section was defined.");
}

Value Interpreter::eval_concat(const Expr& expr) {
  TextBuilder out(budget_);
  for (const ExprPtr& item : expr.items) out.append(*to_text(eval(*item), budget_));
  return Value::text(out.finish());
}

bool Interpreter::compare(const std::string& op, const Value& left, const Value& right) {
  if (op == "==") return equal(left, right, budget_);
  if (op == "!=") return !equal(left, right, budget_);
  if (op == "<") return less(left, right, budget_);
  if (op == ">") return less(right, left, budget_);
  if (op == "in") return contains(right, left, budget_);
  if (op == "not in") return !contains(right, left, budget_);
  // <= and >=: for floats, not the negation (NaN).
  if (op == "<=") return less(left, right, budget_) || equal(left, right, budget_);
  return less(right, left, budget_) || equal(left, right, budget_);
}

Value Interpreter::eval_compare(const Expr& expr) {
  Value left = eval(*expr.items[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.items[i + 1]);
    if (!compare(expr.ops[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

namespace {

// Start, stop and step of a Python slice over `n` elements.
struct SliceRange {
  int64_t start, stop, step;
};

int64_t slice_bound(const Value& value, int64_t n, int64_t otherwise, int64_t low, int64_t high) {
  if (value.is(Kind::kNone)) return otherwise;
  int64_t at = value.as_int();
  if (at < 0) at = at < -n ? -1 : at + n;  // below the first: clamped next
  return std::min(std::max(at, low), high);
}

SliceRange slice_range(const Value parts[3], int64_t n) {
  for (int i = 0; i < 3; ++i) {
    if (parts[i].is(Kind::kUndefined)) fail_undefined(parts[i]);
    if (!parts[i].is(Kind::kNone) && !parts[i].is_integral()) {
      fail_type("slice indices must be integers or None or have an __index__ method");
    }
  }
  SliceRange range{0, 0, parts[2].is(Kind::kNone) ? 1 : parts[2].as_int()};
  if (range.step == 0) fail_type("slice step cannot be zero");
  const bool forward = range.step > 0;
  const int64_t low = forward ? 0 : -1;
  const int64_t high = forward ? n : n - 1;
  range.start = slice_bound(parts[0], n, forward ? 0 : n - 1, low, high);
  range.stop = slice_bound(parts[1], n, forward ? n : -1, low, high);
  return range;
}

int64_t slice_count(const SliceRange& r) {
  if (r.step > 0) return r.start < r.stop ? (r.stop - r.start - 1) / r.step + 1 : 0;
  return r.start > r.stop ? static_cast<int64_t>(static_cast<uint64_t>(r.start - r.stop - 1) / (0 - static_cast<uint64_t>(r.step))) + 1 : 0;
}

Value slice_text(const Text& text, const SliceRange& range, Budget& budget) {
  if (range.step == 1) {
    if (range.stop <= range.start) return Value::text("");
    const size_t begin = byte_offset(text, range.start, budget);
    return Value::text(sub_text(text, begin, byte_offset(text, range.stop, budget), budget));
  }
  std::vector<size_t> offsets;  // of every code point
  offsets.reserve(static_cast<size_t>(text.length) + 1);
  for (size_t at = 0, length = 0; at < text.bytes.size(); at += length) {
    offsets.push_back(at);
    decode(text.bytes, at, &length);
  }
  offsets.push_back(text.bytes.size());
  budget.charge(text.length / 4);
  TextBuilder out(budget);
  int64_t at = range.start;
  for (int64_t n = slice_count(range); n > 0; --n) {
    out.append(text, offsets[static_cast<size_t>(at)], offsets[static_cast<size_t>(at) + 1]);
    if (n > 1) at += range.step;
  }
  return Value::text(out.finish());
}

}  // namespace

Value Interpreter::eval_slice(const Expr& expr) {
  const Value object = eval(*expr.items[0]);
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) parts[i] = expr.items[i + 1] ? eval(*expr.items[i + 1]) : Value::none();
  if (object.is(Kind::kUndefined)) fail_undefined(object);
  if (object.is(Kind::kString)) {
    return slice_text(object.as_text(), slice_range(parts, object.as_text().length), budget_);
  }
  if (!object.is(Kind::kList) && !object.is(Kind::kTuple) && !object.is(Kind::kRange)) {
    return Value::undefined(std::string("'") + type_name(object) + "' object cannot be sliced");
  }
  const auto& items = object.as_sequence().items;
  const SliceRange range = slice_range(parts, static_cast<int64_t>(items.size()));
  std::vector<Value> out;
  int64_t at = range.start;
  for (int64_t n = slice_count(range); n > 0; --n) {
    out.push_back(items[static_cast<size_t>(at)]);
    if (n > 1) at += range.step;
  }
  const Kind kind = object.is(Kind::kRange) ? Kind::kList : object.kind();
  return make_sequence(kind, std::move(out), budget_);
}

void Interpreter::eval_args(const CallArgs& source, Args* args) {
  for (const ExprPtr& arg : source.positional) args->positional.push_back(eval(*arg));
  if (source.star) {
    for (Value& value : iterate(eval(*source.star), budget_)) args->positional.push_back(std::move(value));
  }
  for (const auto& [name, arg] : source.named) {
    for (const auto& before : args->named) {
      if (before.first == name) fail_type("keyword argument repeated: " + name);
    }
    args->named.emplace_back(name, eval(*arg));
  }
  if (!source.double_star) return;
  const Value extra = eval(*source.double_star);
  if (!extra.is(Kind::kDict)) fail_type("argument after ** must be a mapping");
  for (const auto& [key, value] : extra.as_dict().items) {
    if (!key.is(Kind::kString)) fail_type("keywords must be strings");
    args->named.emplace_back(key.as_text().bytes, value);
  }
}

Value Interpreter::eval_call(const Expr& expr) {
  const Value callee = eval(*expr.items[0]);
  Args args;
  eval_args(expr.args, &args);
  return call(callee, args);
}

Value Interpreter::call(const Value& callee, Args& args) {
  if (callee.is(Kind::kUndefined)) fail_undefined(callee);
  auto* callable = callee.object_as<Callable>();
  if (callable == nullptr) fail_type(std::string("'") + type_name(callee) + "' object is not callable");
  const std::shared_ptr<Object> keep = callee.ref();
  return callable->call(*this, args);
}

Value Interpreter::eval_filter(const Expr& expr) {
  Args args;
  if (expr.items[0]) {
    args.positional.push_back(eval(*expr.items[0]));
  } else {
    for (auto it = block_subjects_.rbegin(); it != block_subjects_.rend(); ++it) {
      if (it->first != &expr) continue;
      args.positional.push_back(it->second);
      break;
    }
  }
  eval_args(expr.args, &args);
  return filter(expr.name, args);
}

Value Interpreter::eval_test(const Expr& expr) {
  Args args;
  args.positional.push_back(eval(*expr.items[0]));
  eval_args(expr.args, &args);
  return Value::boolean(test(expr.name, args));
}

Value Interpreter::filter(const std::string& name, Args& args) {
  for (const FunctionTable* table : {&text_filters(), &list_filters(), &number_filters()}) {
    const auto it = table->find(name);
    if (it != table->end()) return it->second(*this, args);
  }
  fail_type("No filter named " + repr_string(name) + ".");
}

bool Interpreter::test(const std::string& name, Args& args) { return run_test(*this, name, args); }

}  // namespace tandem::jinja
