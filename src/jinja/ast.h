// What the parser hands to the interpreter. Plain data, immutable after parsing. Depth is bounded by the
// parser, so recursive walks (and destructors) are safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace tandem::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  kConst,      // constant
  kName,       // name
  kTuple, kList,
  kDict,       // items: key, value, key, value …
  kCondition,  // items: test, then, else (may be null: undefined)
  kOr, kAnd, kNot, kNegate, kPlus,
  kBinary,     // text: + - * / // % **
  kConcat,     // items: two or more
  kCompare,    // items[0] ops[0] items[1] ops[1] …
  kAttribute,  // items[0].name
  kItem,       // items[0][items[1]]
  kSlice,      // items[0][items[1]:items[2]:items[3]], each of the three may be null
  kCall,       // items[0](args)
  kFilter,     // items[0] | name(args); a null subject is the body of a block
  kTest,       // items[0] is name(args)
  kNamespaceTarget,  // name.attribute, only as a target of set
};

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 0;
  int depth = 1;
  std::string name;
  std::string attribute;
  Value constant;
  std::vector<ExprPtr> items;
  std::vector<std::string> ops;
  CallArgs args;
};

enum class StmtKind {
  kText, kOutput, kFor, kIf, kSet, kSetBlock, kMacro, kCallBlock, kFilterBlock, kWith, kBreak, kContinue,
  kGeneration,
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct MacroDef {
  std::string name;  // "" for a call block's body
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Body body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
  int line = 0;
};

struct Branch {
  ExprPtr test;  // null: else
  Body body;
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  Value text;                     // kText
  ExprPtr target;                 // kFor, kSet, kSetBlock
  ExprPtr value;                  // kOutput, kFor (iterated), kSet, kCallBlock (the call), filter chain
  ExprPtr filter;                 // kFor: the `if` of the loop
  bool is_recursive = false;      // kFor
  Body body, otherwise;           // otherwise: for-else
  std::vector<Branch> branches;   // kIf
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;  // kWith
  std::unique_ptr<MacroDef> macro;  // kMacro, kCallBlock
};

struct Program {
  Body body;
};

}  // namespace tandem::jinja
