#include "jinja/interpreter.h"

#include "jinja/builtins.h"
#include "jinja/loop.h"

namespace tandem::jinja {
namespace {

struct MacroObject : Callable {
  MacroObject(const MacroDef* d, Scope* s) : definition(d), scope(s) {}
  Value call(Interpreter& interpreter, Args& args) override { return interpreter.call_macro(*definition, scope, args); }
  std::string repr() const override { return "<Macro '" + definition->name + "'>"; }
  const MacroDef* definition;
  Scope* scope;
};

}  // namespace

Interpreter::Interpreter(const Limits& limits, int64_t now_s) : limits_(limits), now_s_(now_s) {
  budget_.max_steps = limits.max_steps;
  budget_.max_bytes = limits.max_output_bytes;
  budget_.max_items = limits.max_items;
  budget_.max_depth = limits.max_depth;
  add_globals(&globals_.variables);
}

// Namespaces may hold themselves, and scopes hold macros: emptied first, so that nothing is left over and no
// destructor runs deep.
Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->attributes.clear();
  for (const auto& scope : scopes_) scope->variables.clear();
}

Interpreter::Depth::Depth(Interpreter* i) : interpreter(i) {
  if (++i->depth_ > 5 * i->limits_.max_depth) {
    --i->depth_;
    throw RenderError{"evaluation is nested deeper than 5 * max_depth = " + std::to_string(5 * i->limits_.max_depth)};
  }
}

Interpreter::Inner::~Inner() {
  interpreter->free_scope(interpreter->scope_);
  interpreter->scope_ = before;
}

Scope* Interpreter::new_scope(Scope* parent) {
  if (free_scopes_.empty()) {
    scopes_.push_back(std::make_unique<Scope>());
    free_scopes_.push_back(scopes_.back().get());
  }
  Scope* scope = free_scopes_.back();
  free_scopes_.pop_back();
  scope->parent = parent;
  return scope;
}

void Interpreter::free_scope(Scope* scope) {
  if (scope->is_captured) return;
  scope->variables.clear();
  free_scopes_.push_back(scope);
}

void Interpreter::capture(Scope* scope) {
  for (; scope != nullptr && !scope->is_captured; scope = scope->parent) scope->is_captured = true;
}

Text Interpreter::run(const Program& program, const Value& context) {
  Output output(this);
  Inner root(this, &globals_);
  for (const auto& [key, value] : context.as_dict().items) scope_->variables[key.as_text().bytes] = value;
  run_body(program.body);
  return output.builder.take();
}

Interpreter::Flow Interpreter::run_body(const Body& body) {
  for (const auto& stmt : body) {
    if (const Flow flow = run_stmt(*stmt); flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_stmt(const Stmt& stmt) {
  Depth depth(this);
  budget_.charge(1);
  try {
    switch (stmt.kind) {
      case StmtKind::kText: out_->append(stmt.text.as_text()); break;
      case StmtKind::kOutput: output(eval(*stmt.value)); break;
      case StmtKind::kIf: return run_if(stmt);
      case StmtKind::kFor: run_for(stmt); break;
      case StmtKind::kSet: assign(*stmt.target, eval(*stmt.value)); break;
      case StmtKind::kSetBlock: assign(*stmt.target, through_filters(stmt.value.get(), capture_body(stmt.body))); break;
      case StmtKind::kMacro:
        capture(scope_);
        scope_->variables[stmt.macro->name] =
            Value::object(Kind::kObject, std::make_shared<MacroObject>(stmt.macro.get(), scope_));
        break;
      case StmtKind::kCallBlock: run_call_block(stmt); break;
      case StmtKind::kFilterBlock: output(through_filters(stmt.value.get(), capture_body(stmt.body))); break;
      case StmtKind::kWith: run_with(stmt); break;
      case StmtKind::kBreak: return Flow::kBreak;
      case StmtKind::kContinue: return Flow::kContinue;
      case StmtKind::kGeneration: return run_body(stmt.body);
    }
  } catch (RenderError& error) {
    if (error.line == 0) error.line = stmt.line;
    throw;
  }
  return Flow::kNormal;
}

void Interpreter::output(const Value& value) {
  if (value.is(Kind::kString)) {
    out_->append(value.as_text());
  } else if (!value.is(Kind::kUndefined)) {
    append_repr(value, *out_);
  }
}

Interpreter::Flow Interpreter::run_if(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    if (!branch.test || truthy(eval(*branch.test))) return run_body(branch.body);
  }
  return Flow::kNormal;
}

void Interpreter::run_for(const Stmt& stmt) { run_loop(stmt, eval(*stmt.value), 0, scope_); }

Value Interpreter::run_recursive_loop(const Stmt& loop, Scope* scope, const Value& items, int level) {
  if (++calls_ > limits_.max_depth) {
    throw RenderError{"recursive loop nested deeper than max_depth = " + std::to_string(limits_.max_depth)};
  }
  Output output(this);
  run_loop(loop, items, level, scope);
  --calls_;
  return Value::text(output.builder.finish());
}

void Interpreter::run_loop(const Stmt& stmt, const Value& iterated, int level, Scope* outer) {
  std::vector<Value> items = iterate(iterated, budget_);
  if (stmt.filter) items = filter_items(stmt, std::move(items), outer);
  if (items.empty()) {
    Inner inner(this, outer);
    run_body(stmt.otherwise);
    return;
  }
  run_iterations(stmt, std::move(items), level, outer);
}

std::vector<Value> Interpreter::filter_items(const Stmt& stmt, std::vector<Value> items, Scope* outer) {
  std::vector<Value> kept;
  for (Value& item : items) {
    Inner inner(this, outer);
    assign(*stmt.target, item);
    if (truthy(eval(*stmt.filter))) kept.push_back(std::move(item));
  }
  return kept;
}

void Interpreter::run_iterations(const Stmt& stmt, std::vector<Value> items, int level, Scope* outer) {
  auto loop = std::make_shared<Loop>();
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.depth());
  loop->items = std::move(items);
  loop->level = level;
  loop->statement = stmt.is_recursive ? &stmt : nullptr;
  loop->scope = outer;
  if (stmt.is_recursive) capture(outer);
  const Value loop_value = holder(loop, deepest);
  for (; loop->position < loop->items.size(); ++loop->position) {
    budget_.charge(1);
    Inner inner(this, outer);
    scope_->variables["loop"] = loop_value;
    assign(*stmt.target, loop->items[loop->position]);
    if (run_body(stmt.body) == Flow::kBreak) break;
  }
}

void Interpreter::run_call_block(const Stmt& stmt) {
  capture(scope_);
  Args args;
  const Value callee = eval(*stmt.value->items[0]);
  eval_args(stmt.value->args, &args);
  args.named.emplace_back("caller",
                          Value::object(Kind::kObject, std::make_shared<MacroObject>(stmt.macro.get(), scope_)));
  output(call(callee, args));
}

void Interpreter::run_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& [target, value] : stmt.assignments) values.push_back(eval(*value));
  Inner inner(this, scope_);
  for (size_t i = 0; i < values.size(); ++i) assign(*stmt.assignments[i].first, values[i]);
  run_body(stmt.body);
}

Value Interpreter::capture_body(const Body& body) {
  Output output(this);
  Inner inner(this, scope_);
  run_body(body);
  return Value::text(output.builder.finish());
}

// The innermost filter of a block has no subject: the block's text stands in for it.
Value Interpreter::through_filters(const Expr* chain, Value value) {
  if (chain == nullptr) return value;
  const Expr* innermost = chain;
  while (innermost->items[0]) innermost = innermost->items[0].get();
  block_subjects_.emplace_back(innermost, std::move(value));
  Value result = eval(*chain);
  block_subjects_.pop_back();
  return result;
}

void Interpreter::assign(const Expr& target, const Value& value) {
  if (target.kind == ExprKind::kName) {
    scope_->variables[target.name] = value;
    return;
  }
  if (target.kind == ExprKind::kNamespaceTarget) {
    Expr name;
    name.name = target.name;
    const Value space = eval_name(name);
    auto* attributes = space.object_as<Namespace>();
    if (attributes == nullptr) throw RenderError{"cannot assign attribute on non-namespace object", target.line};
    attributes->attributes[target.attribute] = value;
    return;
  }
  const std::vector<Value> items = iterate(value, budget_);
  if (items.size() != target.items.size()) {
    const std::string wanted = " (expected " + std::to_string(target.items.size());
    if (items.size() > target.items.size()) throw RenderError{"too many values to unpack" + wanted + ")", target.line};
    throw RenderError{"not enough values to unpack" + wanted + ", got " + std::to_string(items.size()) + ")", target.line};
  }
  for (size_t i = 0; i < items.size(); ++i) assign(*target.items[i], items[i]);
}

Value Interpreter::make_namespace(Args& args) {
  auto space = std::make_shared<Namespace>();
  for (const Value& source : args.positional) {
    if (!source.is(Kind::kDict)) fail_type("namespace() takes dictionaries and name=value arguments");
    for (const auto& [key, value] : source.as_dict().items) {
      if (key.is(Kind::kString)) space->attributes[key.as_text().bytes] = value;
    }
  }
  for (auto& [name, value] : args.named) space->attributes[name] = value;
  namespaces_.push_back(space);
  return Value::object(Kind::kNamespace, space);
}

Value Interpreter::holder(std::shared_ptr<Object> object, int depth_of_content) {
  if (depth_of_content >= limits_.max_depth) {
    throw RenderError{"values are nested deeper than max_depth = " + std::to_string(limits_.max_depth)};
  }
  return Value::object(Kind::kObject, std::move(object), depth_of_content + 1);
}

Value Interpreter::call_macro(const MacroDef& macro, Scope* scope, Args& args) {
  Depth depth(this);
  if (++calls_ > limits_.max_depth) {
    throw RenderError{"macro calls nested deeper than max_depth = " + std::to_string(limits_.max_depth)};
  }
  Output output(this);
  Inner inner(this, scope);
  bind_parameters(macro, args);
  run_body(macro.body);
  --calls_;
  return Value::text(output.builder.finish());
}

void Interpreter::bind_parameters(const MacroDef& macro, Args& args) {
  const size_t first_default = macro.parameters.size() - macro.defaults.size();
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const std::string& name = macro.parameters[i];
    if (i < args.positional.size()) {
      scope_->variables[name] = args.positional[i];
      continue;
    }
    bool is_given = false;
    for (size_t k = 0; k < args.named.size() && !is_given; ++k) {
      if (args.named[k].first != name) continue;
      scope_->variables[name] = args.named[k].second;
      args.named.erase(args.named.begin() + static_cast<std::ptrdiff_t>(k));
      is_given = true;
    }
    if (is_given) continue;
    scope_->variables[name] = i >= first_default
                                  ? eval(*macro.defaults[i - first_default])
                                  : Value::undefined("parameter '" + name + "' was not provided");
  }
  bind_extras(macro, args);
}

void Interpreter::bind_extras(const MacroDef& macro, Args& args) {
  const std::string shown = macro.name.empty() ? "None" : repr_string(macro.name);
  if (macro.uses_caller) {
    Value caller = Value::undefined("No caller defined");
    for (size_t k = 0; k < args.named.size(); ++k) {
      if (args.named[k].first != "caller") continue;
      caller = args.named[k].second;
      args.named.erase(args.named.begin() + static_cast<std::ptrdiff_t>(k));
      break;
    }
    scope_->variables["caller"] = caller;
  }
  if (macro.uses_kwargs) {
    scope_->variables["kwargs"] = Value::dict(std::move(args.named));
  } else if (!args.named.empty()) {
    fail_type("macro " + shown + " takes no keyword argument " + repr_string(args.named[0].first));
  }
  const size_t n = macro.parameters.size();
  if (macro.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = n; i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    scope_->variables["varargs"] = make_sequence(Kind::kTuple, std::move(rest), budget_);
  } else if (args.positional.size() > n) {
    fail_type("macro " + shown + " takes not more than " + std::to_string(n) + " argument(s)");
  }
}

}  // namespace tandem::jinja
