// Walks a Program. One object per rendering, confined to the calling thread. Statements are in interpreter.cc,
// expressions in evaluate.cc, operators in operators.cc, attributes and methods in attributes.cc and
// string_methods.cc.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "jinja/ast.h"
#include "jinja/jinja.h"

namespace tandem::jinja {

struct Scope {
  std::unordered_map<std::string, Value> variables;
  Scope* parent = nullptr;
  bool is_captured = false;  // a macro may still read it: not to be reused
};

class Interpreter {
 public:
  Interpreter(const Limits& limits, int64_t now_s);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // The whole output. Throws RenderError.
  Text run(const Program& program, const Value& context);

  // For filters, tests, functions and methods. All throw RenderError.
  Budget& budget() { return budget_; }
  int64_t now_s() const { return now_s_; }
  Value attribute(const Value& object, const std::string& name);  // object.name
  Value item(const Value& object, const Value& key);              // object[key]
  Value call(const Value& callee, Args& args);
  Value filter(const std::string& name, Args& args);  // args.positional[0]: the value
  bool test(const std::string& name, Args& args);
  Value make_namespace(Args& args);
  Value call_macro(const MacroDef& macro, Scope* scope, Args& args);
  Value run_recursive_loop(const Stmt& loop, Scope* scope, const Value& items, int level);
  // An object that holds values of this depth; throws when that is too deep.
  Value holder(std::shared_ptr<Object> object, int depth_of_content);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  struct Depth {  // one level of recursion
    explicit Depth(Interpreter* i);
    ~Depth() { --interpreter->depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    Interpreter* interpreter;
  };
  struct Output {  // redirects output into a builder of its own
    explicit Output(Interpreter* i) : interpreter(i), builder(i->budget_), before(i->out_) { i->out_ = &builder; }
    ~Output() { interpreter->out_ = before; }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;
    Interpreter* interpreter;
    TextBuilder builder;
    TextBuilder* before;
  };
  struct Inner {  // a scope of its own
    explicit Inner(Interpreter* i, Scope* parent) : interpreter(i), before(i->scope_) { i->scope_ = i->new_scope(parent); }
    ~Inner();
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;
    Interpreter* interpreter;
    Scope* before;
  };

  Scope* new_scope(Scope* parent);
  void free_scope(Scope* scope);
  void capture(Scope* scope);
  Flow run_body(const Body& body);
  Flow run_stmt(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  void run_for(const Stmt& stmt);
  void run_loop(const Stmt& stmt, const Value& iterated, int level, Scope* outer);
  void run_iterations(const Stmt& stmt, std::vector<Value> items, int level, Scope* outer);
  std::vector<Value> filter_items(const Stmt& stmt, std::vector<Value> items, Scope* outer);
  void run_call_block(const Stmt& stmt);
  void run_with(const Stmt& stmt);
  Value capture_body(const Body& body);
  Value through_filters(const Expr* chain, Value value);
  void assign(const Expr& target, const Value& value);
  void output(const Value& value);
  void bind_parameters(const MacroDef& macro, Args& args);
  void bind_extras(const MacroDef& macro, Args& args);

  Value eval(const Expr& expr);
  Value eval_inner(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_items(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_condition(const Expr& expr);
  Value eval_concat(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_slice(const Expr& expr);
  Value eval_call(const Expr& expr);
  Value eval_filter(const Expr& expr);
  Value eval_test(const Expr& expr);
  bool compare(const std::string& op, const Value& left, const Value& right);
  void eval_args(const CallArgs& source, Args* args);

  Limits limits_;
  Budget budget_;
  int64_t now_s_;
  int depth_ = 0;
  int calls_ = 0;  // macro calls and recursive loops under way
  TextBuilder* out_ = nullptr;
  Scope* scope_ = nullptr;
  Scope globals_;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<Scope*> free_scopes_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::pair<const Expr*, Value>> block_subjects_;  // bodies of filter blocks, by innermost filter
};

}  // namespace tandem::jinja
