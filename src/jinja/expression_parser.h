// Expressions, with jinja2's precedence. The statement parser derives from this class and shares its tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace tandem::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, int max_depth) : tokens_(std::move(tokens)), max_depth_(max_depth) {}

 protected:
  struct TupleOptions {
    bool with_condition = true;
    bool in_parentheses = false;
    std::string_view end_name = {};  // a name that ends the tuple, as `recursive` does
  };
  // One level of recursion; throws when there are too many.
  struct Nesting {
    explicit Nesting(ExpressionParser* p) : parser(p) { parser->enter(); }
    ~Nesting() { --parser->nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    ExpressionParser* parser;
  };

  [[noreturn]] void fail(const std::string& message, int line) const { throw RenderError{message, line}; }
  [[noreturn]] void fail_unexpected() const;
  const Token& current() const { return tokens_[at_]; }
  const Token& peek() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool is_op(std::string_view op) const { return current().type == TokenType::kOp && current().text == op; }
  bool is_name(std::string_view name) const { return current().type == TokenType::kName && current().text == name; }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  std::string expect_any_name();

  ExprPtr make(ExprKind kind, int line) const;
  void add(Expr* parent, ExprPtr child) const;  // keeps depth

  ExprPtr parse_expression() { return parse_condition(); }
  ExprPtr parse_tuple(TupleOptions options);
  ExprPtr parse_filters(ExprPtr subject, bool starts_inline);
  ExprPtr parse_name_target();  // one name, or name.attribute
  ExprPtr parse_target(bool with_namespace, std::string_view end_name);

 private:
  void enter();
  bool tuple_ends(const TupleOptions& options) const;
  ExprPtr parse_condition();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter);
  ExprPtr parse_primary();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_filter_expression(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_slice_or_index(ExprPtr node, int line);
  ExprPtr parse_test(ExprPtr node);
  ExprPtr parse_call(ExprPtr node);
  void parse_arguments(Expr* node);
  std::string dotted_name();
  ExprPtr binary(ExprKind kind, ExprPtr left, ExprPtr right, int line) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int max_depth_;

 protected:
  int conditional_ = 0;  // inside an if: unknown filters and tests are reported only when reached
};

}  // namespace tandem::jinja
