#include "jinja/loop.h"

#include "jinja/builtins.h"

namespace tandem::jinja {
namespace {

// loop.cycle and loop.changed.
struct LoopMethod : Callable {
  LoopMethod(std::shared_ptr<Object> l, bool cycle) : loop(std::move(l)), is_cycle(cycle) {}

  Value call(Interpreter& interpreter, Args& args) override {
    Loop& self = static_cast<Loop&>(*loop);
    if (is_cycle) {
      if (args.positional.empty()) fail_type("no items for cycling given");
      return args.positional[self.position % args.positional.size()];
    }
    TextBuilder seen(interpreter.budget());
    append_repr(Value::list(args.positional), seen);
    std::string bytes = seen.take().bytes;
    const bool changed = !self.has_changed || bytes != self.last_changed;
    self.has_changed = true;
    self.last_changed = std::move(bytes);
    return Value::boolean(changed);
  }

  std::string repr() const override { return is_cycle ? "<bound method cycle>" : "<bound method changed>"; }
  std::shared_ptr<Object> loop;
  bool is_cycle;
};

Value place(size_t n) { return Value::integer(static_cast<int64_t>(n)); }

}  // namespace

Value Loop::call(Interpreter& interpreter, Args& args) {
  if (statement == nullptr) {
    fail_type("The loop must have the 'recursive' marker to be called recursively.");
  }
  const Params params("loop", args, {"iterable"}, 1);
  return interpreter.run_recursive_loop(*statement, scope, params.at(0), level + 1);
}

std::string Loop::repr() const {
  return "<LoopContext " + std::to_string(position + 1) + "/" + std::to_string(items.size()) + ">";
}

Value Loop::attribute(const std::string& name, const Value& self) {
  const size_t n = items.size();
  if (name == "index") return place(position + 1);
  if (name == "index0") return place(position);
  if (name == "revindex") return place(n - position);
  if (name == "revindex0") return place(n - position - 1);
  if (name == "first") return Value::boolean(position == 0);
  if (name == "last") return Value::boolean(position + 1 == n);
  if (name == "length") return place(n);
  if (name == "depth") return Value::integer(level + 1);
  if (name == "depth0") return Value::integer(level);
  if (name == "previtem") {
    return position > 0 ? items[position - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return position + 1 < n ? items[position + 1] : Value::undefined("there is no next item");
  }
  if (name == "cycle" || name == "changed") {
    return Value::object(Kind::kObject, std::make_shared<LoopMethod>(self.ref(), name == "cycle"), self.depth());
  }
  return Value::undefined("'jinja2.runtime.LoopContext object' has no attribute " + repr_string(name));
}

}  // namespace tandem::jinja
