// The `loop` variable of a for statement.
#pragma once

#include <string>
#include <vector>

#include "jinja/interpreter.h"

namespace tandem::jinja {

struct Loop : Callable {
  std::vector<Value> items;
  size_t position = 0;
  int level = 0;                    // depth0
  const Stmt* statement = nullptr;  // set: the loop is recursive and can be called
  Scope* scope = nullptr;
  std::string last_changed;  // what changed() saw, as text: holding the values could close a cycle
  bool has_changed = false;

  Value call(Interpreter& interpreter, Args& args) override;
  std::string repr() const override;
  // loop.index, loop.cycle, …; undefined for other names.
  Value attribute(const std::string& name, const Value& self);
};

}  // namespace tandem::jinja
