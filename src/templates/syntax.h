// Tokens and the syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/templates/value.h"

namespace sy::templates {

// Thrown for wrong syntax. Template adds its name.
struct SyntaxError : std::runtime_error {
  SyntaxError(int at, const std::string& reason) : std::runtime_error(reason), line(at) {}
  int line;
};

enum class TokenKind { data, output_begin, output_end, block_begin, block_end, name, literal, symbol, end };
struct Token {
  TokenKind kind;
  int line;
  std::string text{};  // of data, a name or a symbol
  Value value{};       // of a literal
};
// Applies trim_blocks, lstrip_blocks and the signs of tags. Throws SyntaxError.
std::vector<Token> tokens_of(std::string_view source);

enum class ExpressionKind {
  constant,
  name,         // text
  tuple,        // children
  list,         // children
  dict,         // children: key, value, key, value...
  attribute,    // of child 0: text
  item,         // of child 0: child 1
  slice,        // of child 0: begin, end and step, each may be nullptr
  call,         // of child 0, with arguments
  filter,       // text, of child 0, with arguments
  test,         // text, of child 0, with arguments
  unary,        // text: not, - or +
  binary,       // text: + - * / // % ** ~
  comparison,   // children: operands; keywords: the symbols between them
  both,         // child 0 and child 1
  either,       // child 0 or child 1
  conditional,  // child 0 if child 1 else child 2, which may be nullptr
};

struct Expression {
  ExpressionKind kind;
  int line;
  int depth = 1;  // levels of the tree below
  std::string text{};
  Value constant{};
  std::vector<std::unique_ptr<const Expression>> children{};
  // Names of the last arguments of a call, filter or test.
  std::vector<std::string> keywords{};
};
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Statement;
using Body = std::vector<std::unique_ptr<const Statement>>;

enum class StatementKind {
  text,       // text
  output,     // expression
  loop,       // for targets in expression if condition: body, otherwise
  branch,     // branches, otherwise
  set,        // targets = expression
  set_block,  // targets[0] = body
  macro,      // text is the name, targets the parameters: body
  scope,      // body
  stop,       // break
  next,       // continue
};

struct Target {
  std::string name, attribute{};  // attribute of a namespace; empty if it is a variable
};

struct Branch {
  ExpressionPtr condition;
  Body body;
};

struct Statement {
  StatementKind kind;
  int line;
  std::string text{};
  std::vector<Target> targets{};
  ExpressionPtr expression{}, condition{};
  std::vector<ExpressionPtr> defaults{};  // of the last parameters of a macro
  std::vector<Branch> branches{};
  Body body{}, otherwise{};
};

struct Program {
  Body body;
};
// Throws SyntaxError.
Program parse(std::string_view source);

// Levels of nesting of expressions and of statements, each.
constexpr int max_nesting = 100;

}  // namespace sy::templates
