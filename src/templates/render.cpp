#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

#include "src/templates/functions.h"
#include "src/templates/syntax.h"
#include "src/templates/template.h"

namespace sy {

namespace templates {

using Scope = std::map<std::string, Value, std::less<>>;

struct Macro {
  const Statement* definition;
  // Variables of the loops and macros around the definition, with their values at that time.
  Scope outer;
};

namespace {

// Levels of evaluation, which uses the stack.
constexpr int max_depth = 1000;

class Renderer {
 public:
  Renderer(const Json& variables, const TemplateLimits& limits) : budget_(limits), scopes_(2) {
    for (const char* name : {"namespace", "dict", "range", "raise_exception"})
      scopes_[0][name] = Function{nullptr, name};
    for (const Json::Member& member : variables.members())
      scopes_[0].insert_or_assign(member.name, Value(member.value));
  }

  std::string run(const Program& program) {
    execute(program.body);
    return std::move(out_);
  }
  int line() const { return line_; }

 private:
  enum class Flow { normal, stop, next };

  struct Level {
    explicit Level(Renderer& r) : renderer(r) {
      if (++r.depth_ > max_depth) throw ValueError("macros or expressions are nested too deep");
    }
    Level(const Level&) = delete;
    ~Level() { --renderer.depth_; }
    Renderer& renderer;
  };

  // Redirects the output to a string.
  template <class Run>
  std::string captured(const Run& run) {
    std::string outer = std::exchange(out_, {});
    run();
    return std::exchange(out_, std::move(outer));
  }
  // Runs statements in a scope of their own.
  Flow in_scope(const Body& body) {
    scopes_.emplace_back();
    const Flow flow = execute(body);
    scopes_.pop_back();
    return flow;
  }

  Flow execute(const Body& body) {
    const Level level(*this);
    for (const auto& statement : body)
      if (const Flow flow = execute(*statement); flow != Flow::normal) return flow;
    return Flow::normal;
  }

  Flow execute(const Statement& s) {
    budget_.step();
    line_ = s.line;
    switch (s.kind) {
      case StatementKind::text:
        write(s.text);
        break;
      case StatementKind::output:
        write(text_of(evaluate(*s.expression)));
        break;
      case StatementKind::loop:
        loop(s);
        break;
      case StatementKind::branch:
        for (const Branch& branch : s.branches)
          if (truth(evaluate(*branch.condition))) return execute(branch.body);
        return execute(s.otherwise);
      case StatementKind::set:
        assign(s.targets, evaluate(*s.expression));
        break;
      case StatementKind::set_block: {
        std::string text = captured([&] { in_scope(s.body); });
        assign(s.targets, std::move(text));
        break;
      }
      case StatementKind::macro:
        define_macro(s);
        break;
      case StatementKind::scope:
        return in_scope(s.body);
      case StatementKind::stop:
        return Flow::stop;
      case StatementKind::next:
        return Flow::next;
    }
    return Flow::normal;
  }

  void define_macro(const Statement& s) {
    budget_.create(sizeof(Macro));
    Macro& macro = macros_.emplace_back(Macro{&s, {}});
    scopes_.back()[s.text] = Value(static_cast<const Macro*>(&macro));
    for (std::size_t i = scopes_.size(); i-- > first_scope_;) {
      budget_.create(2 * sizeof(Value) * scopes_[i].size());
      macro.outer.insert(scopes_[i].begin(), scopes_[i].end());
    }
  }

  void write(std::string_view text) {
    budget_.create(text.size());
    budget_.output(out_.size() + text.size());
    out_ += text;
  }

  const Value* find(std::string_view name) const {
    for (std::size_t i = scopes_.size(); i-- > first_scope_;)
      if (const auto found = scopes_[i].find(name); found != scopes_[i].end()) return &found->second;
    for (std::size_t i = 2; i-- > 0;)
      if (const auto found = scopes_[i].find(name); found != scopes_[i].end()) return &found->second;
    return nullptr;
  }

  void assign(const std::vector<Target>& targets, const Value& value) {
    if (targets.size() == 1) return assign(targets[0], value);
    const List items = items_of(value);
    if (items.size() != targets.size())
      throw ValueError(fmt::format("{} values for {} variables", items.size(), targets.size()));
    for (std::size_t i = 0; i < targets.size(); ++i) assign(targets[i], items[i]);
  }
  void assign(const Target& target, const Value& value) {
    if (target.attribute.empty()) {
      scopes_.back().insert_or_assign(target.name, value);
      return;
    }
    const Value* found = find(target.name);
    const auto* space = found ? std::get_if<Namespace*>(&found->data) : nullptr;
    if (!space || (*space)->is_loop) throw ValueError(fmt::format("'{}' is not a namespace", target.name));
    budget_.create(target.attribute.size() + sizeof(Value));
    (*space)->set(target.attribute, value);
  }

  Namespace* make_namespace() {
    budget_.create(sizeof(Namespace));
    return &namespaces_.emplace_back();
  }

  void loop(const Statement& s) {
    const Value all = evaluate(*s.expression);
    budget_.create(sizeof(Value) * static_cast<std::size_t>(most_items(all)));
    List items = items_of(all);
    if (s.condition) {
      List selected;
      for (Value& item : items) {
        budget_.step();
        scopes_.emplace_back();
        assign(s.targets, item);
        if (truth(evaluate(*s.condition))) selected.push_back(std::move(item));
        scopes_.pop_back();
      }
      items = std::move(selected);
    }
    if (items.empty()) {
      in_scope(s.otherwise);
      return;
    }
    Namespace* const state = make_namespace();
    state->is_loop = true;
    for (std::size_t i = 0; i < items.size(); ++i) {
      budget_.step();
      describe(*state, items, i);
      Scope& scope = scopes_.emplace_back();
      scope["loop"] = Value(state);
      assign(s.targets, items[i]);
      const Flow flow = execute(s.body);
      scopes_.pop_back();
      if (flow == Flow::stop) break;
    }
  }
  static void describe(Namespace& state, const List& items, std::size_t i) {
    const auto n = static_cast<std::int64_t>(items.size()), at = static_cast<std::int64_t>(i);
    const auto item = [&](bool there, std::size_t index, const char* name) {
      return there ? items[index] : Value::undefined(name);
    };
    state.attributes = {{"index0", at},
                        {"index", at + 1},
                        {"revindex0", n - at - 1},
                        {"revindex", n - at},
                        {"first", i == 0},
                        {"last", at + 1 == n},
                        {"length", n},
                        {"depth", std::int64_t{1}},
                        {"previtem", item(i > 0, i - 1, "previtem")},
                        {"nextitem", item(i + 1 < items.size(), i + 1, "nextitem")}};
  }

  Arguments arguments_of(const Expression& e) {
    Arguments arguments;
    const std::size_t positional = e.children.size() - e.keywords.size();
    for (std::size_t i = 1; i < positional; ++i) arguments.positional.push_back(evaluate(*e.children[i]));
    for (std::size_t i = 0; i < e.keywords.size(); ++i)
      arguments.named.emplace_back(e.keywords[i], evaluate(*e.children[positional + i]));
    return arguments;
  }
  List values_of(const Expression& e) {
    budget_.create(sizeof(Value) * e.children.size());
    List values;
    for (const ExpressionPtr& child : e.children) values.push_back(evaluate(*child));
    return values;
  }

  Value evaluate(const Expression& e) {
    const Level level(*this);
    budget_.step();
    line_ = e.line;
    const auto child = [&](std::size_t i) { return evaluate(*e.children[i]); };
    switch (e.kind) {
      case ExpressionKind::constant:
        return e.constant;
      case ExpressionKind::name: {
        const Value* value = find(e.text);
        return value ? *value : Value::undefined(e.text);
      }
      case ExpressionKind::tuple:
        return Value::tuple(values_of(e));
      case ExpressionKind::list:
        return values_of(e);
      case ExpressionKind::dict:
        return dict(e);
      case ExpressionKind::attribute:
        return attribute_of(child(0), e.text);
      case ExpressionKind::item: {
        const Value value = child(0);
        return item_of(value, child(1));
      }
      case ExpressionKind::slice: {
        Value operands[4];
        for (std::size_t i = 0; i < 4; ++i)
          if (e.children[i]) operands[i] = child(i);
        return slice_of(operands[0], operands[1], operands[2], operands[3], budget_);
      }
      case ExpressionKind::call:
        return call(e);
      case ExpressionKind::filter: {
        const Value value = child(0);
        const Arguments arguments = arguments_of(e);
        line_ = e.line;
        return apply_filter(e.text, value, arguments, budget_);
      }
      case ExpressionKind::test: {
        const Value value = child(0);
        return apply_test(e.text, value, arguments_of(e));
      }
      case ExpressionKind::unary: {
        if (e.text == "not") return !truth(child(0));
        return binary_operation(e.text, std::int64_t{0}, child(0), budget_);
      }
      case ExpressionKind::binary: {
        const Value left = child(0), right = child(1);
        line_ = e.line;
        return binary_operation(e.text, left, right, budget_);
      }
      case ExpressionKind::comparison:
        return comparison(e);
      case ExpressionKind::both: {
        Value left = child(0);
        return truth(left) ? child(1) : std::move(left);
      }
      case ExpressionKind::either: {
        Value left = child(0);
        return truth(left) ? std::move(left) : child(1);
      }
      case ExpressionKind::conditional:
        if (truth(child(1))) return child(0);
        return e.children[2] ? child(2) : Value::undefined("the value of an if without else");
    }
    return {};
  }

  Value dict(const Expression& e) {
    budget_.create(sizeof(Value) * e.children.size());
    Dict items;
    for (std::size_t i = 0; i < e.children.size(); i += 2) {
      Value key = evaluate(*e.children[i]), value = evaluate(*e.children[i + 1]);
      set_item(items, std::move(key), std::move(value));
    }
    return items;
  }

  bool comparison(const Expression& e) {
    Value left = evaluate(*e.children[0]);
    for (std::size_t i = 0; i < e.keywords.size(); ++i) {
      Value right = evaluate(*e.children[i + 1]);
      if (!compares(e.keywords[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }
  static bool compares(std::string_view symbol, const Value& a, const Value& b) {
    if (symbol == "==") return equal(a, b);
    if (symbol == "!=") return !equal(a, b);
    if (symbol == "in") return contains(b, a);
    if (symbol == "not in") return !contains(b, a);
    const int order = compare(a, b);
    return symbol == "<" ? order < 0 : symbol == "<=" ? order <= 0 : symbol == ">" ? order > 0 : order >= 0;
  }

  Value call(const Expression& e) {
    const Value function = evaluate(*e.children[0]);
    const Arguments arguments = arguments_of(e);
    line_ = e.line;
    if (const auto* macro = std::get_if<const Macro*>(&function.data)) return call(**macro, arguments);
    if (const auto* undefined = std::get_if<Undefined>(&function.data))
      throw ValueError(undefined->name == "strftime_now"
                           ? "strftime_now is not supported, because the text would depend on the date: test "
                             "'strftime_now is defined', or write a date"
                           : fmt::format("'{}' is undefined", undefined->name));
    const auto* known = std::get_if<Function>(&function.data);
    if (!known) throw ValueError(fmt::format("{} cannot be called", type_name(function)));
    if (known->self) return call_method(*known->self, known->name, arguments, budget_);
    if (known->name == "range") return range(arguments);
    if (known->name == "raise_exception")
      throw ValueError("the template refuses the conversation: " + text_of(arguments.need(0, "message", known->name)));
    Dict items;
    for (const Value& positional : arguments.positional) {
      if (!positional.dict()) throw ValueError(fmt::format("{} needs dicts or named arguments", known->name));
      for (const auto& [key, value] : *positional.dict()) set_item(items, key, value);
    }
    for (const auto& [name, value] : arguments.named) set_item(items, Value(name), value);
    budget_.create(2 * sizeof(Value) * items.size());
    if (known->name == "dict") return items;
    Namespace* const space = make_namespace();
    for (auto& [key, value] : items) space->set(key.need_string("an attribute"), std::move(value));
    return space;
  }

  Value range(const Arguments& arguments) {
    std::vector<std::int64_t> bounds;
    for (const Value& bound : arguments.positional) bounds.push_back(bound.need_integer("a bound of range()"));
    if (bounds.empty() || bounds.size() > 3) throw ValueError("range() needs one to three integers");
    const std::int64_t begin = bounds.size() > 1 ? bounds[0] : 0, end = bounds.size() > 1 ? bounds[1] : bounds[0];
    const std::int64_t step = bounds.size() > 2 ? bounds[2] : 1;
    if (step == 0) throw ValueError("the step of range() is 0");
    List items;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
      if (items.size() == 100'000) throw ValueError("range() has more than 100000 items");
      items.emplace_back(i);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    budget_.create(sizeof(Value) * items.size());
    return items;
  }

  Value call(const Macro& macro, const Arguments& arguments) {
    const Level level(*this);
    const Statement& s = *macro.definition;
    if (arguments.positional.size() > s.targets.size())
      throw ValueError(fmt::format("{} arguments for macro {}, which has {} parameters", arguments.positional.size(),
                                   s.text, s.targets.size()));
    for (const auto& [name, value] : arguments.named)
      if (std::ranges::find(s.targets, name, &Target::name) == s.targets.end())
        throw ValueError(fmt::format("macro {} has no parameter '{}'", s.text, name));
    // The macro sees its own variables, those of the loops and macros around its definition, and
    // those outside of all loops.
    const std::size_t caller_scope = std::exchange(first_scope_, scopes_.size());
    scopes_.push_back(macro.outer);
    scopes_.emplace_back();
    const std::size_t without_default = s.targets.size() - s.defaults.size();
    for (std::size_t i = 0; i < s.targets.size(); ++i) {
      const std::string& name = s.targets[i].name;
      const Value* value = arguments.find(i, name);
      scopes_.back()[name] = value                  ? *value
                             : i >= without_default ? evaluate(*s.defaults[i - without_default])
                                                    : Value::undefined(name);
    }
    std::string text = captured([&] { execute(s.body); });
    scopes_.pop_back();
    scopes_.pop_back();
    first_scope_ = caller_scope;
    return text;
  }

  Budget budget_;
  std::string out_;
  std::vector<Scope> scopes_;    // [0]: the caller's, [1]: the template's, then loops and macros
  std::size_t first_scope_ = 2;  // of the current macro
  std::deque<Namespace> namespaces_;
  std::deque<Macro> macros_;
  int depth_ = 0, line_ = 1;
};

}  // namespace
}  // namespace templates

TemplateError::TemplateError(const std::string& name, int at, const std::string& reason)
    : InputError(fmt::format("{}: line {}: {}", name, at, reason)), line(at) {}

Template::Template(std::string name, std::string_view source) : name_(std::move(name)) {
  try {
    program_ = std::make_shared<const templates::Program>(templates::parse(source));
  } catch (const templates::SyntaxError& e) {
    throw TemplateError(name_, e.line, e.what());
  }
}

std::string Template::render(const Json& variables, const TemplateLimits& limits) const {
  templates::Renderer renderer(variables, limits);
  try {
    return renderer.run(*program_);
  } catch (const templates::ValueError& e) {
    throw TemplateError(name_, renderer.line(), e.what());
  }
}

}  // namespace sy
