#include "jinja/expression_parser.h"

#include <algorithm>

#include "jinja/builtins.h"

namespace tandem::jinja {
namespace {

std::string describe(const Token& token) {
  switch (token.type) {
    case TokenType::kData: return "template text";
    case TokenType::kBlockBegin: return "begin of statement block";
    case TokenType::kBlockEnd: return "end of statement block";
    case TokenType::kOutputBegin: return "begin of print statement";
    case TokenType::kOutputEnd: return "end of print statement";
    case TokenType::kEnd: return "end of template";
    default: return "'" + token.text + "'";
  }
}

bool is_constant_name(const std::string& name) {
  return name == "true" || name == "True" || name == "false" || name == "False" || name == "none" || name == "None";
}

bool one_of(const std::string& text, std::initializer_list<std::string_view> list) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

}  // namespace

void ExpressionParser::enter() {
  if (++nesting_ > max_depth_) {
    --nesting_;
    fail("nested deeper than max_depth = " + std::to_string(max_depth_), current().line);
  }
}

void ExpressionParser::fail_unexpected() const { fail("unexpected " + describe(current()), current().line); }

Token ExpressionParser::take() {
  Token token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  take();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  take();
  return true;
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail("expected '" + std::string(op) + "', got " + describe(current()), current().line);
}

std::string ExpressionParser::expect_any_name() {
  if (current().type != TokenType::kName) fail("expected a name, got " + describe(current()), current().line);
  return take().text;
}

ExprPtr ExpressionParser::make(ExprKind kind, int line) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

void ExpressionParser::add(Expr* parent, ExprPtr child) const {
  if (child) {
    parent->depth = std::max(parent->depth, child->depth + 1);
    // Chains such as a + b + … grow trees without nesting the parser: twice the depth is plenty for those.
    if (parent->depth > 2 * max_depth_) {
      fail("expression longer than 2 * max_depth = " + std::to_string(2 * max_depth_) + " operations", child->line);
    }
  }
  parent->items.push_back(std::move(child));
}

ExprPtr ExpressionParser::binary(ExprKind kind, ExprPtr left, ExprPtr right, int line) const {
  ExprPtr node = make(kind, line);
  add(node.get(), std::move(left));
  add(node.get(), std::move(right));
  return node;
}

ExprPtr ExpressionParser::parse_condition() {
  Nesting nesting(this);
  int line = current().line;
  ExprPtr then = parse_or();
  while (skip_name("if")) {
    ++conditional_;
    ExprPtr test = parse_or();
    ExprPtr otherwise = skip_name("else") ? parse_condition() : nullptr;
    --conditional_;
    ExprPtr node = make(ExprKind::kCondition, line);
    add(node.get(), std::move(test));
    add(node.get(), std::move(then));
    add(node.get(), std::move(otherwise));
    then = std::move(node);
    line = current().line;
  }
  return then;
}

ExprPtr ExpressionParser::parse_or() {
  int line = current().line;
  ExprPtr left = parse_and();
  while (skip_name("or")) left = binary(ExprKind::kOr, std::move(left), parse_and(), line);
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  int line = current().line;
  ExprPtr left = parse_not();
  while (skip_name("and")) left = binary(ExprKind::kAnd, std::move(left), parse_not(), line);
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  const int line = current().line;
  if (!skip_name("not")) return parse_compare();
  Nesting nesting(this);
  ExprPtr node = make(ExprKind::kNot, line);
  add(node.get(), parse_not());
  return node;
}

ExprPtr ExpressionParser::parse_compare() {
  const int line = current().line;
  ExprPtr first = parse_sum();
  ExprPtr node;
  while (true) {
    std::string op;
    if (current().type == TokenType::kOp && one_of(current().text, {"==", "!=", "<", "<=", ">", ">="})) {
      op = take().text;
    } else if (skip_name("in")) {
      op = "in";
    } else if (is_name("not") && peek().type == TokenType::kName && peek().text == "in") {
      take();
      take();
      op = "not in";
    } else {
      break;
    }
    if (!node) {
      node = make(ExprKind::kCompare, line);
      add(node.get(), std::move(first));
    }
    node->ops.push_back(op);
    add(node.get(), parse_sum());
  }
  return node ? std::move(node) : std::move(first);
}

ExprPtr ExpressionParser::parse_sum() {
  int line = current().line;
  ExprPtr left = parse_concat();
  while (is_op("+") || is_op("-")) {
    const std::string op = take().text;
    left = binary(ExprKind::kBinary, std::move(left), parse_concat(), line);
    left->name = op;
    line = current().line;
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  const int line = current().line;
  ExprPtr first = parse_product();
  if (!is_op("~")) return first;
  ExprPtr node = make(ExprKind::kConcat, line);
  add(node.get(), std::move(first));
  while (skip_op("~")) add(node.get(), parse_product());
  return node;
}

ExprPtr ExpressionParser::parse_product() {
  int line = current().line;
  ExprPtr left = parse_power();
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    const std::string op = take().text;
    left = binary(ExprKind::kBinary, std::move(left), parse_power(), line);
    left->name = op;
    line = current().line;
  }
  return left;
}

ExprPtr ExpressionParser::parse_power() {
  int line = current().line;
  ExprPtr left = parse_unary(true);
  while (skip_op("**")) {
    left = binary(ExprKind::kBinary, std::move(left), parse_unary(true), line);
    left->name = "**";
    line = current().line;
  }
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filter) {
  Nesting nesting(this);
  const int line = current().line;
  ExprPtr node;
  if (is_op("-") || is_op("+")) {
    node = make(is_op("-") ? ExprKind::kNegate : ExprKind::kPlus, line);
    take();
    add(node.get(), parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filter_expression(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::parse_primary() {
  const int line = current().line;
  if (is_op("(")) {
    take();
    ExprPtr node = parse_tuple({.in_parentheses = true});
    expect_op(")");
    return node;
  }
  if (is_op("[")) return parse_list();
  if (is_op("{")) return parse_dict();
  ExprPtr node = make(ExprKind::kConst, line);
  if (current().type == TokenType::kNumber) {
    node->constant = take().number;
  } else if (current().type == TokenType::kString) {
    std::string text = take().text;
    while (current().type == TokenType::kString) text += take().text;
    node->constant = Value::text(text);
  } else if (current().type == TokenType::kName) {
    const std::string name = take().text;
    if (!is_constant_name(name)) {
      node->kind = ExprKind::kName;
      node->name = name;
    } else if (name[0] == 'n' || name[0] == 'N') {
      node->constant = Value::none();
    } else {
      node->constant = Value::boolean(name[0] == 't' || name[0] == 'T');
    }
  } else {
    fail_unexpected();
  }
  return node;
}

bool ExpressionParser::tuple_ends(const TupleOptions& options) const {
  const TokenType type = current().type;
  if (type == TokenType::kOutputEnd || type == TokenType::kBlockEnd || is_op(")")) return true;
  return !options.end_name.empty() && is_name(options.end_name);
}

ExprPtr ExpressionParser::parse_tuple(TupleOptions options) {
  const int line = current().line;
  ExprPtr tuple = make(ExprKind::kTuple, line);
  bool is_tuple = false;
  while (!tuple_ends(options)) {
    add(tuple.get(), options.with_condition ? parse_condition() : parse_or());
    if (!is_op(",")) break;
    take();
    is_tuple = true;
  }
  if (is_tuple || (tuple->items.empty() && options.in_parentheses)) return tuple;
  if (tuple->items.empty()) fail("expected an expression, got " + describe(current()), line);
  return std::move(tuple->items[0]);
}

ExprPtr ExpressionParser::parse_list() {
  ExprPtr node = make(ExprKind::kList, current().line);
  expect_op("[");
  while (!is_op("]")) {
    if (!node->items.empty()) expect_op(",");
    if (is_op("]")) break;
    add(node.get(), parse_expression());
  }
  expect_op("]");
  return node;
}

ExprPtr ExpressionParser::parse_dict() {
  ExprPtr node = make(ExprKind::kDict, current().line);
  expect_op("{");
  while (!is_op("}")) {
    if (!node->items.empty()) expect_op(",");
    if (is_op("}")) break;
    add(node.get(), parse_expression());
    expect_op(":");
    add(node.get(), parse_expression());
  }
  expect_op("}");
  return node;
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr node) {
  while (true) {
    if (is_op(".") || is_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (is_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::parse_filter_expression(ExprPtr node) {
  while (true) {
    if (is_op("|")) {
      node = parse_filters(std::move(node), false);
    } else if (is_name("is")) {
      node = parse_test(std::move(node));
    } else if (is_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr node) {
  const int line = current().line;
  if (take().text == "[") return parse_slice_or_index(std::move(node), line);
  if (current().type == TokenType::kName) {
    ExprPtr attribute = make(ExprKind::kAttribute, line);
    attribute->name = take().text;
    add(attribute.get(), std::move(node));
    return attribute;
  }
  if (current().type != TokenType::kNumber || !current().number.is(Kind::kInt)) {
    fail("expected name or number", current().line);
  }
  ExprPtr index = make(ExprKind::kConst, line);
  index->constant = take().number;
  return binary(ExprKind::kItem, std::move(node), std::move(index), line);
}

// After "[": one expression, a slice, or several expressions (a tuple).
ExprPtr ExpressionParser::parse_slice_or_index(ExprPtr node, int line) {
  ExprPtr parts[3];
  int part = 0;
  bool is_slice = false;
  ExprPtr tuple;
  while (!is_op("]")) {
    if (is_op(":") && part < 2) {
      take();
      is_slice = true;
      ++part;
      continue;
    }
    if (is_op(",") && !is_slice && parts[0]) {
      if (!tuple) tuple = make(ExprKind::kTuple, line);
      add(tuple.get(), std::move(parts[0]));
      take();
      continue;
    }
    if (parts[part]) fail("expected ']', got " + describe(current()), current().line);
    parts[part] = parse_expression();
  }
  expect_op("]");
  if (is_slice && tuple) fail("a slice inside a tuple index is not supported", line);
  if (!is_slice) {
    if (tuple && parts[0]) add(tuple.get(), std::move(parts[0]));
    ExprPtr index = tuple ? std::move(tuple) : std::move(parts[0]);
    if (!index) fail("expected subscript expression", line);
    return binary(ExprKind::kItem, std::move(node), std::move(index), line);
  }
  ExprPtr slice = make(ExprKind::kSlice, line);
  add(slice.get(), std::move(node));
  for (ExprPtr& p : parts) add(slice.get(), std::move(p));
  return slice;
}

std::string ExpressionParser::dotted_name() {
  std::string name = expect_any_name();
  while (skip_op(".")) name += "." + expect_any_name();
  return name;
}

ExprPtr ExpressionParser::parse_filters(ExprPtr subject, bool starts_inline) {
  while (is_op("|") || starts_inline) {
    if (!starts_inline) take();
    starts_inline = false;
    ExprPtr node = make(ExprKind::kFilter, current().line);
    node->name = dotted_name();
    if (conditional_ == 0 && !is_known_filter(node->name)) fail("No filter named '" + node->name + "'.", node->line);
    add(node.get(), std::move(subject));
    if (is_op("(")) parse_arguments(node.get());
    subject = std::move(node);
  }
  return subject;
}

ExprPtr ExpressionParser::parse_test(ExprPtr node) {
  const int line = take().line;
  const bool is_negated = skip_name("not");
  ExprPtr test = make(ExprKind::kTest, line);
  test->name = dotted_name();
  if (conditional_ == 0 && !is_known_test(test->name)) fail("No test named '" + test->name + "'.", line);
  add(test.get(), std::move(node));
  const TokenType type = current().type;
  const bool has_operand = type == TokenType::kString || type == TokenType::kNumber || is_op("[") || is_op("{") ||
                           (type == TokenType::kName && !one_of(current().text, {"else", "or", "and"}));
  if (is_op("(")) {
    parse_arguments(test.get());
  } else if (has_operand) {
    if (is_name("is")) fail("You cannot chain multiple tests with is", current().line);
    test->args.positional.push_back(parse_postfix(parse_primary()));
    test->depth = std::max(test->depth, test->args.positional[0]->depth + 1);
  }
  if (!is_negated) return test;
  ExprPtr negation = make(ExprKind::kNot, line);
  add(negation.get(), std::move(test));
  return negation;
}

ExprPtr ExpressionParser::parse_call(ExprPtr node) {
  ExprPtr call = make(ExprKind::kCall, current().line);
  add(call.get(), std::move(node));
  parse_arguments(call.get());
  return call;
}

void ExpressionParser::parse_arguments(Expr* node) {
  CallArgs& args = node->args;
  expect_op("(");
  bool is_first = true;
  while (!is_op(")")) {
    if (!is_first) expect_op(",");
    is_first = false;
    if (is_op(")")) break;
    ExprPtr value;
    const bool has_named = !args.named.empty() || args.double_star;
    if (is_op("*") || is_op("**")) {
      ExprPtr& slot = take().text == "*" ? args.star : args.double_star;
      if (slot) fail("invalid syntax for function call expression", current().line);
      slot = parse_expression();
      node->depth = std::max(node->depth, slot->depth + 1);
      continue;
    }
    if (current().type == TokenType::kName && peek().type == TokenType::kOp && peek().text == "=") {
      std::string name = take().text;
      take();
      value = parse_expression();
      node->depth = std::max(node->depth, value->depth + 1);
      args.named.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (has_named || args.star) fail("invalid syntax for function call expression", current().line);
    value = parse_expression();
    node->depth = std::max(node->depth, value->depth + 1);
    args.positional.push_back(std::move(value));
  }
  expect_op(")");
}

ExprPtr ExpressionParser::parse_name_target() {
  const Token token = current();
  ExprPtr target = make(ExprKind::kName, token.line);
  target->name = expect_any_name();
  if (is_constant_name(target->name)) fail("can't assign to '" + target->name + "'", token.line);
  if (!is_op(".")) return target;
  take();
  target->kind = ExprKind::kNamespaceTarget;
  target->attribute = expect_any_name();
  return target;
}

ExprPtr ExpressionParser::parse_target(bool with_namespace, std::string_view end_name) {
  Nesting nesting(this);
  const int line = current().line;
  ExprPtr tuple = make(ExprKind::kTuple, line);
  bool is_tuple = false;
  while (current().type == TokenType::kName || is_op("(")) {
    if (!end_name.empty() && is_name(end_name)) break;
    if (skip_op("(")) {
      add(tuple.get(), parse_target(with_namespace, {}));
      expect_op(")");
    } else {
      ExprPtr target = parse_name_target();
      if (target->kind == ExprKind::kNamespaceTarget && !with_namespace) {
        fail("expected 'in', got '.'", target->line);
      }
      add(tuple.get(), std::move(target));
    }
    if (!skip_op(",")) break;
    is_tuple = true;
  }
  if (tuple->items.empty()) fail("expected a name to assign to, got " + describe(current()), line);
  return is_tuple ? std::move(tuple) : std::move(tuple->items[0]);
}

}  // namespace tandem::jinja
