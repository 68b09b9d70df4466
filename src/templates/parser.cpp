// Tokens to a syntax tree, as jinja2/parser.py.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/templates/syntax.h"

namespace sy::templates {
namespace {

constexpr std::size_t max_source_bytes = 1 << 20;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Program run() { return {body({})}; }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw SyntaxError(peek().line, reason); }
  [[noreturn]] void unexpected(std::string_view expected) const {
    const Token& t = peek();
    const std::string found = t.kind == TokenKind::end ? "the end of the template"
                              : t.kind == TokenKind::output_end || t.kind == TokenKind::block_end ? "the end of the tag"
                              : t.kind == TokenKind::literal                                      ? repr(t.value)
                                                                                                  : "'" + t.text + "'";
    fail(fmt::format("{} where {} is expected", found, expected));
  }

  const Token& peek() const { return tokens_[at_]; }
  Token take() { return tokens_[peek().kind == TokenKind::end ? at_ : at_++]; }
  bool is_symbol(std::string_view text) const { return peek().kind == TokenKind::symbol && peek().text == text; }
  bool is_name(std::string_view text) const { return peek().kind == TokenKind::name && peek().text == text; }
  bool accept(bool found) {
    at_ += found;
    return found;
  }
  bool accept_symbol(std::string_view text) { return accept(is_symbol(text)); }
  bool accept_name(std::string_view text) { return accept(is_name(text)); }
  void expect_symbol(std::string_view text) {
    if (!accept_symbol(text)) unexpected(fmt::format("'{}'", text));
  }
  std::string expect_name() {
    if (peek().kind != TokenKind::name) unexpected("a name");
    return take().text;
  }
  void expect_block_end() {
    if (peek().kind != TokenKind::block_end) unexpected("the end of the tag, %},");
    take();
  }

  // Counts the levels of recursion.
  struct Level {
    explicit Level(Parser& p) : parser(p) {
      if (++parser.level_ > max_nesting) parser.fail(fmt::format("nested more than {} deep", max_nesting));
    }
    Level(const Level&) = delete;
    ~Level() { --parser.level_; }
    Parser& parser;
  };

  // Statements up to a block whose name is in `ends`, which is consumed up to its name. Without
  // `ends`, up to the end of the template.
  Body body(const std::vector<std::string_view>& ends) {
    const Level level(*this);
    const int line = peek().line;
    Body statements;
    while (peek().kind != TokenKind::end) {
      const Token token = take();
      const auto add = [&](Statement s) { statements.push_back(std::make_unique<const Statement>(std::move(s))); };
      if (token.kind == TokenKind::data) {
        add({.kind = StatementKind::text, .line = token.line, .text = token.text});
      } else if (token.kind == TokenKind::output_begin) {
        ExpressionPtr value = tuple();
        if (peek().kind != TokenKind::output_end) unexpected("the end of the tag, }},");
        take();
        add({.kind = StatementKind::output, .line = token.line, .expression = std::move(value)});
      } else {
        if (peek().kind == TokenKind::name && std::ranges::find(ends, peek().text) != ends.end()) return statements;
        add(statement());
      }
    }
    if (!ends.empty()) throw SyntaxError(line, fmt::format("the block has no end: write {{% {} %}}", ends.back()));
    return statements;
  }
  Body body_to(std::string_view end) {
    expect_block_end();
    Body statements = body({end});
    take();
    expect_block_end();
    return statements;
  }
  // The body of else, empty without one, up to the end of a statement.
  Body otherwise_to(std::string_view end) {
    if (accept_name("else")) return body_to(end);
    take();
    expect_block_end();
    return {};
  }

  Statement statement() {
    static constexpr struct {
      std::string_view name;
      Statement (Parser::*parse)(int line);
    } statements[] = {{"for", &Parser::loop},        {"if", &Parser::branch},  {"set", &Parser::set},
                      {"macro", &Parser::macro},     {"break", &Parser::stop}, {"continue", &Parser::next},
                      {"generation", &Parser::scope}};
    const int line = peek().line;
    const std::string name = expect_name();
    for (const auto& known : statements)
      if (known.name == name) return (this->*known.parse)(line);
    throw SyntaxError(line, fmt::format("the statement '{}' is not supported", name));
  }

  Statement loop(int line) {
    Statement s{.kind = StatementKind::loop, .line = line, .targets = targets()};
    if (!accept_name("in")) unexpected("'in'");
    s.expression = tuple(false);
    if (accept_name("if")) s.condition = expression();
    if (is_name("recursive")) fail("recursive loops are not supported");
    expect_block_end();
    ++loops_;
    s.body = body({"else", "endfor"});
    --loops_;
    s.otherwise = otherwise_to("endfor");
    return s;
  }

  Statement branch(int line) {
    Statement s{.kind = StatementKind::branch, .line = line};
    do {
      ExpressionPtr condition = tuple(false);
      expect_block_end();
      s.branches.push_back({std::move(condition), body({"elif", "else", "endif"})});
    } while (accept_name("elif"));
    s.otherwise = otherwise_to("endif");
    return s;
  }

  Statement set(int line) {
    Statement s{.kind = StatementKind::set, .line = line, .targets = targets()};
    if (accept_symbol("=")) {
      s.expression = tuple();
      expect_block_end();
      return s;
    }
    s.kind = StatementKind::set_block;
    if (s.targets.size() != 1) unexpected("'='");
    s.body = body_to("endset");
    return s;
  }

  Statement macro(int line) {
    Statement s{.kind = StatementKind::macro, .line = line, .text = expect_name()};
    expect_symbol("(");
    while (!accept_symbol(")")) {
      if (!s.targets.empty()) expect_symbol(",");
      s.targets.push_back({expect_name()});
      if (accept_symbol("="))
        s.defaults.push_back(expression());
      else if (!s.defaults.empty())
        fail("a parameter without a default is after one with a default");
    }
    const int loops = std::exchange(loops_, 0);
    s.body = body_to("endmacro");
    loops_ = loops;
    return s;
  }

  Statement scope(int line) { return {.kind = StatementKind::scope, .line = line, .body = body_to("endgeneration")}; }
  Statement stop(int line) { return leave(StatementKind::stop, line); }
  Statement next(int line) { return leave(StatementKind::next, line); }
  Statement leave(StatementKind kind, int line) {
    if (loops_ == 0) fail("break and continue are for loops alone");
    expect_block_end();
    return {.kind = kind, .line = line};
  }

  std::vector<Target> targets() {
    std::vector<Target> all;
    const bool parentheses = accept_symbol("(");
    do {
      if (!all.empty() && peek().kind != TokenKind::name) break;
      Target& target = all.emplace_back(Target{expect_name()});
      static constexpr std::string_view reserved[] = {"true", "false", "none", "True", "False", "None"};
      if (std::ranges::find(reserved, target.name) != std::end(reserved))
        fail(fmt::format("'{}' cannot be assigned", target.name));
      if (accept_symbol(".")) target.attribute = expect_name();
    } while (accept_symbol(","));
    if (parentheses) expect_symbol(")");
    return all;
  }

  ExpressionPtr make(ExpressionKind kind, int line, std::string text, std::vector<ExpressionPtr> children,
                     std::vector<std::string> keywords = {}, Value constant = {}) const {
    int depth = 0;
    for (const ExpressionPtr& child : children)
      if (child) depth = std::max(depth, child->depth);
    if (depth >= 4 * max_nesting)
      throw SyntaxError(line, fmt::format("an expression has more than {} levels", 4 * max_nesting));
    return std::make_unique<const Expression>(Expression{kind, line, depth + 1, std::move(text), std::move(constant),
                                                         std::move(children), std::move(keywords)});
  }
  template <class... Children>
  static std::vector<ExpressionPtr> list_of(Children... children) {
    std::vector<ExpressionPtr> all;
    (all.push_back(std::move(children)), ...);
    return all;
  }

  // Expressions with commas between them. conditional: `a if b` is allowed.
  ExpressionPtr tuple(bool conditional = true) {
    const int line = peek().line;
    ExpressionPtr first = conditional ? expression() : disjunction();
    if (!is_symbol(",")) return first;
    std::vector<ExpressionPtr> items = list_of(std::move(first));
    while (accept_symbol(",")) {
      const TokenKind kind = peek().kind;
      if (kind == TokenKind::output_end || kind == TokenKind::block_end || is_symbol(")") || is_symbol("=")) break;
      items.push_back(conditional ? expression() : disjunction());
    }
    return make(ExpressionKind::tuple, line, "", std::move(items));
  }

  ExpressionPtr expression() {
    const Level level(*this);
    const int line = peek().line;
    ExpressionPtr value = disjunction();
    while (accept_name("if")) {
      ExpressionPtr condition = disjunction();
      ExpressionPtr otherwise = accept_name("else") ? expression() : nullptr;
      value = make(ExpressionKind::conditional, line, "",
                   list_of(std::move(value), std::move(condition), std::move(otherwise)));
    }
    return value;
  }

  ExpressionPtr disjunction() { return joined("or", ExpressionKind::either, &Parser::conjunction); }
  ExpressionPtr conjunction() { return joined("and", ExpressionKind::both, &Parser::negation); }
  // Operands with "and" or "or" between them.
  ExpressionPtr joined(std::string_view operator_name, ExpressionKind kind, ExpressionPtr (Parser::*operand)()) {
    ExpressionPtr left = (this->*operand)();
    while (is_name(operator_name)) {
      const int line = take().line;
      left = make(kind, line, "", list_of(std::move(left), (this->*operand)()));
    }
    return left;
  }
  ExpressionPtr negation() {
    if (!is_name("not")) return comparison();
    const Level level(*this);
    const int line = take().line;
    return make(ExpressionKind::unary, line, "not", list_of(negation()));
  }

  ExpressionPtr comparison() {
    static constexpr std::string_view symbols[] = {"==", "!=", "<", "<=", ">", ">="};
    const int line = peek().line;
    std::vector<ExpressionPtr> operands = list_of(binary(0));
    std::vector<std::string> operators;
    while (true) {
      if (peek().kind == TokenKind::symbol && std::ranges::find(symbols, peek().text) != std::end(symbols)) {
        operators.push_back(take().text);
      } else if (accept_name("in")) {
        operators.emplace_back("in");
      } else if (is_name("not") && tokens_[at_ + 1].kind == TokenKind::name && tokens_[at_ + 1].text == "in") {
        at_ += 2;
        operators.emplace_back("not in");
      } else {
        break;
      }
      operands.push_back(binary(0));
    }
    if (operators.empty()) return std::move(operands.front());
    return make(ExpressionKind::comparison, line, "", std::move(operands), std::move(operators));
  }

  // Binary operators of a level and of those that bind tighter.
  ExpressionPtr binary(std::size_t level) {
    static const std::vector<std::string_view> levels[] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    if (level == std::size(levels)) return unary(true);
    ExpressionPtr left = binary(level + 1);
    while (peek().kind == TokenKind::symbol && std::ranges::find(levels[level], peek().text) != levels[level].end()) {
      const Token op = take();
      left = make(ExpressionKind::binary, op.line, op.text, list_of(std::move(left), binary(level + 1)));
    }
    return left;
  }

  ExpressionPtr unary(bool with_filters) {
    const Level level(*this);
    ExpressionPtr value;
    if (is_symbol("-") || is_symbol("+")) {
      const Token op = take();
      value = make(ExpressionKind::unary, op.line, op.text, list_of(unary(false)));
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    return with_filters ? filtered(std::move(value)) : std::move(value);
  }

  ExpressionPtr primary() {
    const Token token = peek();
    const auto constant = [&](Value value) {
      return make(ExpressionKind::constant, token.line, "", {}, {}, std::move(value));
    };
    if (token.kind == TokenKind::name) {
      take();
      if (token.text == "true" || token.text == "True") return constant(true);
      if (token.text == "false" || token.text == "False") return constant(false);
      if (token.text == "none" || token.text == "None") return constant(None{});
      return make(ExpressionKind::name, token.line, token.text, {});
    }
    if (token.kind == TokenKind::literal) {
      take();
      if (!token.value.is_string()) return constant(token.value);
      std::string text = *token.value.string();  // neighbouring strings are one
      while (peek().kind == TokenKind::literal && peek().value.is_string()) text += *take().value.string();
      return constant(Value(std::move(text)));
    }
    if (accept_symbol("(")) {
      ExpressionPtr value = is_symbol(")") ? make(ExpressionKind::tuple, token.line, "", {}) : tuple();
      expect_symbol(")");
      return value;
    }
    if (accept_symbol("[")) return make(ExpressionKind::list, token.line, "", items_to("]", false));
    if (accept_symbol("{")) return make(ExpressionKind::dict, token.line, "", items_to("}", true));
    unexpected("an expression");
  }
  // Items up to a bracket, with or without keys. A comma at the end is allowed.
  std::vector<ExpressionPtr> items_to(std::string_view end, bool keys) {
    std::vector<ExpressionPtr> items;
    while (!accept_symbol(end)) {
      if (!items.empty()) expect_symbol(",");
      if (accept_symbol(end)) break;
      items.push_back(expression());
      if (!keys) continue;
      expect_symbol(":");
      items.push_back(expression());
    }
    return items;
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    while (true) {
      const int line = peek().line;
      if (accept_symbol(".")) {
        if (peek().kind == TokenKind::literal) {  // x.0 is x[0]
          ExpressionPtr index = make(ExpressionKind::constant, line, "", {}, {}, take().value);
          value = make(ExpressionKind::item, line, "", list_of(std::move(value), std::move(index)));
        } else {
          value = make(ExpressionKind::attribute, line, expect_name(), list_of(std::move(value)));
        }
      } else if (accept_symbol("[")) {
        value = subscript(std::move(value), line);
      } else if (accept_symbol("(")) {
        value = with_arguments(ExpressionKind::call, line, "", std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr value, int line) {
    std::vector<ExpressionPtr> bounds(1);
    bool slices = false;
    if (!is_symbol(":")) bounds[0] = expression();
    while (accept_symbol(":")) {
      slices = true;
      bounds.emplace_back();
      if (!is_symbol(":") && !is_symbol("]")) bounds.back() = expression();
    }
    expect_symbol("]");
    if (!slices) return make(ExpressionKind::item, line, "", list_of(std::move(value), std::move(bounds[0])));
    if (bounds.size() > 3) fail("a slice has more than a begin, an end and a step");
    bounds.resize(3);
    return make(ExpressionKind::slice, line, "",
                list_of(std::move(value), std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2])));
  }

  // Arguments after "(", which is consumed.
  ExpressionPtr with_arguments(ExpressionKind kind, int line, std::string name, ExpressionPtr value) {
    std::vector<ExpressionPtr> children = list_of(std::move(value));
    std::vector<std::string> keywords;
    while (!accept_symbol(")")) {
      if (children.size() > 1) expect_symbol(",");
      if (accept_symbol(")")) break;
      if (is_symbol("*") || is_symbol("**")) fail("arguments from a list or a dict are not supported");
      const bool keyword =
          peek().kind == TokenKind::name && tokens_[at_ + 1].kind == TokenKind::symbol && tokens_[at_ + 1].text == "=";
      if (keyword) {
        keywords.push_back(take().text);
        take();
      } else if (!keywords.empty()) {
        fail("an argument without a name is after one with a name");
      }
      children.push_back(expression());
    }
    return make(kind, line, std::move(name), std::move(children), std::move(keywords));
  }

  ExpressionPtr filtered(ExpressionPtr value) {
    while (true) {
      const int line = peek().line;
      if (accept_symbol("|")) {
        std::string name = expect_name();
        value = accept_symbol("(") ? with_arguments(ExpressionKind::filter, line, std::move(name), std::move(value))
                                   : make(ExpressionKind::filter, line, std::move(name), list_of(std::move(value)));
      } else if (accept_name("is")) {
        const bool negated = accept_name("not");
        value = test(std::move(value), line);
        if (negated) value = make(ExpressionKind::unary, line, "not", list_of(std::move(value)));
      } else if (accept_symbol("(")) {
        value = with_arguments(ExpressionKind::call, line, "", std::move(value));
      } else {
        return value;
      }
    }
  }
  ExpressionPtr test(ExpressionPtr value, int line) {
    std::string name = expect_name();
    if (accept_symbol("(")) return with_arguments(ExpressionKind::test, line, std::move(name), std::move(value));
    std::vector<ExpressionPtr> children = list_of(std::move(value));
    static constexpr std::string_view ends[] = {"else", "or", "and", "is", "if", "in", "not"};
    const bool has_argument =
        peek().kind == TokenKind::literal || is_symbol("(") || is_symbol("[") || is_symbol("{") ||
        (peek().kind == TokenKind::name && std::ranges::find(ends, peek().text) == std::end(ends));
    if (has_argument) children.push_back(postfix(primary()));
    return make(ExpressionKind::test, line, std::move(name), std::move(children));
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int level_ = 0, loops_ = 0;
};

}  // namespace

Program parse(std::string_view source) {
  if (source.size() > max_source_bytes)
    throw SyntaxError(1, fmt::format("a template has at most {} bytes", max_source_bytes));
  return Parser(tokens_of(source)).run();
}

}  // namespace sy::templates
