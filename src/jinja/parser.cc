#include "jinja/parser.h"

#include <algorithm>

#include "jinja/expression_parser.h"

namespace tandem::jinja {
namespace {

using StmtPtr = std::unique_ptr<Stmt>;

// Whether the macro's body reads one of the names that jinja2 fills in by itself.
class NameFinder {
 public:
  explicit NameFinder(MacroDef* macro) : macro_(macro) {}
  void visit(const Body& body) {
    for (const StmtPtr& stmt : body) visit(*stmt);
  }

 private:
  void visit(const ExprPtr& expr) {
    if (!expr) return;
    if (expr->kind == ExprKind::kName) {
      macro_->uses_varargs |= expr->name == "varargs";
      macro_->uses_kwargs |= expr->name == "kwargs";
      macro_->uses_caller |= expr->name == "caller";
    }
    for (const ExprPtr& item : expr->items) visit(item);
    for (const ExprPtr& arg : expr->args.positional) visit(arg);
    for (const auto& [name, arg] : expr->args.named) visit(arg);
    visit(expr->args.star);
    visit(expr->args.double_star);
  }

  void visit(const Stmt& stmt) {
    visit(stmt.value);
    visit(stmt.filter);
    visit(stmt.body);
    visit(stmt.otherwise);
    for (const Branch& branch : stmt.branches) {
      visit(branch.test);
      visit(branch.body);
    }
    for (const auto& [target, value] : stmt.assignments) visit(value);
    if (!stmt.macro) return;
    for (const ExprPtr& value : stmt.macro->defaults) visit(value);
    macro_->uses_varargs |= stmt.macro->uses_varargs;
    macro_->uses_kwargs |= stmt.macro->uses_kwargs;
    macro_->uses_caller |= stmt.macro->uses_caller;
  }

  MacroDef* macro_;
};

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  std::unique_ptr<Program> run() {
    auto program = std::make_unique<Program>();
    program->body = parse_body({});
    if (current().type != TokenType::kEnd) fail_unexpected();
    return program;
  }

 private:
  bool at_end_of(const std::vector<std::string_view>& ends) const {
    return current().type == TokenType::kName && std::find(ends.begin(), ends.end(), current().text) != ends.end();
  }

  // Statements up to a block that starts with one of `ends`; its name is then the current token.
  Body parse_body(const std::vector<std::string_view>& ends) {
    Nesting nesting(this);
    Body body;
    while (current().type != TokenType::kEnd) {
      const Token token = take();
      if (token.type == TokenType::kData) {
        body.push_back(make_stmt(StmtKind::kText, token.line));
        body.back()->text = Value::text(token.text);
      } else if (token.type == TokenType::kOutputBegin) {
        body.push_back(make_stmt(StmtKind::kOutput, token.line));
        body.back()->value = parse_tuple({});
        expect_type(TokenType::kOutputEnd, "end of print statement");
      } else if (token.type == TokenType::kBlockBegin) {
        if (at_end_of(ends)) return body;
        body.push_back(parse_statement(ends));
        expect_type(TokenType::kBlockEnd, "end of statement block");
      } else {
        fail_unexpected();
      }
    }
    if (!ends.empty()) {
      std::string expected;
      for (const auto& end : ends) expected += (expected.empty() ? "'" : " or '") + std::string(end) + "'";
      fail("unexpected end of template: the innermost block needs " + expected, current().line);
    }
    return body;
  }

  void expect_type(TokenType type, const char* what) {
    if (current().type != type) {
      fail(std::string("expected ") + what + ", got '" + current().text + "'", current().line);
    }
    take();
  }

  // Body after the block's own tag, up to and including the name that ends it.
  Body parse_block_body(std::vector<std::string_view> ends) {
    skip_op(":");
    expect_type(TokenType::kBlockEnd, "end of statement block");
    return parse_body(ends);
  }

  Body parse_whole_body(std::string_view end) {
    Body body = parse_block_body({end});
    take();
    return body;
  }

  StmtPtr make_stmt(StmtKind kind, int line) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  StmtPtr parse_statement(const std::vector<std::string_view>& ends) {
    if (current().type != TokenType::kName) fail("tag name expected", current().line);
    const Token token = take();
    const std::string& tag = token.text;
    if (tag == "for") return parse_for(token.line);
    if (tag == "if") return parse_if(token.line);
    if (tag == "set") return parse_set(token.line);
    if (tag == "macro") return parse_macro(token.line);
    if (tag == "call") return parse_call_block(token.line);
    if (tag == "filter") return parse_filter_block(token.line);
    if (tag == "with") return parse_with(token.line);
    if (tag == "break" || tag == "continue") return parse_loop_control(token);
    if (tag == "print") return parse_print(token.line);
    if (tag == "generation") {
      StmtPtr stmt = make_stmt(StmtKind::kGeneration, token.line);
      stmt->body = parse_whole_body("endgeneration");
      return stmt;
    }
    for (const char* refused : {"include", "import", "from", "extends", "block", "autoescape", "do"}) {
      if (tag == refused) fail("statement '" + tag + "' is not supported in chat templates", token.line);
    }
    std::string message = "Encountered unknown tag '" + tag + "'.";
    for (const auto& end : ends) message += " The innermost block expects '" + std::string(end) + "'.";
    fail(message, token.line);
  }

  StmtPtr parse_print(int line) {
    StmtPtr stmt = make_stmt(StmtKind::kOutput, line);
    stmt->value = parse_tuple({});
    return stmt;
  }

  StmtPtr parse_loop_control(const Token& token) {
    if (loops_ == 0) fail("'" + token.text + "' outside of a loop", token.line);
    return make_stmt(token.text == "break" ? StmtKind::kBreak : StmtKind::kContinue, token.line);
  }

  StmtPtr parse_for(int line) {
    StmtPtr stmt = make_stmt(StmtKind::kFor, line);
    stmt->target = parse_target(false, "in");
    if (!skip_name("in")) fail("expected 'in', got '" + current().text + "'", current().line);
    stmt->value = parse_tuple({.with_condition = false, .end_name = "recursive"});
    if (skip_name("if")) stmt->filter = parse_expression();
    stmt->is_recursive = skip_name("recursive");
    ++loops_;
    stmt->body = parse_block_body({"endfor", "else"});
    --loops_;
    if (take().text == "else") stmt->otherwise = parse_whole_body("endfor");
    return stmt;
  }

  StmtPtr parse_if(int line) {
    StmtPtr stmt = make_stmt(StmtKind::kIf, line);
    ++conditional_;
    while (true) {
      Branch branch;
      branch.test = parse_tuple({.with_condition = false});
      branch.body = parse_block_body({"elif", "else", "endif"});
      stmt->branches.push_back(std::move(branch));
      const std::string tag = take().text;
      if (tag == "elif") continue;
      if (tag == "else") {
        stmt->branches.emplace_back();
        stmt->branches.back().body = parse_whole_body("endif");
      }
      break;
    }
    --conditional_;
    return stmt;
  }

  StmtPtr parse_set(int line) {
    StmtPtr stmt = make_stmt(StmtKind::kSet, line);
    stmt->target = parse_target(true, {});
    if (skip_op("=")) {
      stmt->value = parse_tuple({});
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->value = parse_filters(nullptr, false);
    stmt->body = parse_whole_body("endset");
    return stmt;
  }

  void parse_signature(MacroDef* macro) {
    expect_op("(");
    while (!is_op(")")) {
      if (!macro->parameters.empty()) expect_op(",");
      if (is_op(")")) break;
      macro->parameters.push_back(expect_any_name());
      if (skip_op("=")) {
        macro->defaults.push_back(parse_expression());
      } else if (!macro->defaults.empty()) {
        fail("non-default argument follows default argument", current().line);
      }
    }
    expect_op(")");
  }

  void parse_macro_body(MacroDef* macro, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    macro->body = parse_whole_body(end);
    loops_ = loops;
    NameFinder(macro).visit(macro->body);
    for (const std::string& name : macro->parameters) macro->uses_caller &= name != "caller";
  }

  StmtPtr parse_macro(int line) {
    StmtPtr stmt = make_stmt(StmtKind::kMacro, line);
    stmt->macro = std::make_unique<MacroDef>();
    stmt->macro->line = line;
    stmt->macro->name = expect_any_name();
    parse_signature(stmt->macro.get());
    parse_macro_body(stmt->macro.get(), "endmacro");
    return stmt;
  }

  StmtPtr parse_call_block(int line) {
    StmtPtr stmt = make_stmt(StmtKind::kCallBlock, line);
    stmt->macro = std::make_unique<MacroDef>();
    stmt->macro->line = line;
    if (is_op("(")) parse_signature(stmt->macro.get());
    stmt->value = parse_expression();
    if (stmt->value->kind != ExprKind::kCall) fail("expected call", line);
    parse_macro_body(stmt->macro.get(), "endcall");
    return stmt;
  }

  StmtPtr parse_filter_block(int line) {
    StmtPtr stmt = make_stmt(StmtKind::kFilterBlock, line);
    stmt->value = parse_filters(nullptr, true);
    stmt->body = parse_whole_body("endfilter");
    return stmt;
  }

  StmtPtr parse_with(int line) {
    StmtPtr stmt = make_stmt(StmtKind::kWith, line);
    while (current().type != TokenType::kBlockEnd) {
      if (!stmt->assignments.empty()) expect_op(",");
      ExprPtr target = parse_name_target();
      expect_op("=");
      ExprPtr value = parse_expression();
      stmt->assignments.emplace_back(std::move(target), std::move(value));
    }
    stmt->body = parse_whole_body("endwith");
    return stmt;
  }

  int loops_ = 0;
};

}  // namespace

std::unique_ptr<Program> parse_program(std::string_view source, int max_depth) {
  return Parser(tokenize(source), max_depth).run();
}

}  // namespace tandem::jinja
