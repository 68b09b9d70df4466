#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/tokenizers/regex.h"

#include <pcre2.h>
#include <time.h>

#include <algorithm>

#include "kernels/check.h"
#include "src/tokenizers/component.h"
#include "src/tokenizers/unicode.h"

namespace sy {
namespace {

using Code = std::shared_ptr<pcre2_code>;

std::string pcre2_message(int error) {
  PCRE2_UCHAR message[256];
  pcre2_get_error_message(error, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

constexpr std::size_t longest = 1 << 16;  // maximum size of an expression in bytes
constexpr std::uint32_t usual = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;

// Compiles an expression. Returns nullptr and sets `error` and `where` if it is invalid.
Code compiled(std::string_view pattern, std::uint32_t options, int& error, std::size_t& where) {
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) no_memory("a regular expression of {} bytes", pattern.size());
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(context.get(), longest);
  return {pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &where,
                        context.get()),
          pcre2_code_free};
}

constexpr std::string_view alphanumeric_members = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view hexadecimal = "0-9a-fA-F";

// Translations of an escape: outside brackets, and as a member of a class. Empty if unsupported.
struct Escape {
  char name;
  std::string outside, member;
};
const std::vector<Escape>& escapes() {
  static const std::vector<Escape> table = [] {
    // Oniguruma counts superscripts and fractions of Latin-1 as letters, but not within brackets.
    const std::string alphanumeric_or_number = fmt::format("{}\\xB2\\xB3\\xB9\\xBC-\\xBE", alphanumeric_members);
    const std::string alphanumeric = fmt::format("[{}]", alphanumeric_or_number);
    return std::vector<Escape>{
        {'s', "\\p{White_Space}", "\\p{White_Space}"},
        {'S', "\\P{White_Space}", "\\P{White_Space}"},
        {'w', alphanumeric, std::string(alphanumeric_members)},
        {'W', fmt::format("[^{}]", alphanumeric_or_number), ""},
        {'h', fmt::format("[{}]", hexadecimal), std::string(hexadecimal)},
        {'H', fmt::format("[^{}]", hexadecimal), ""},
        {'b', fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", alphanumeric), "\\x08"},
        {'B', fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", alphanumeric), ""},
        {'v', "\\x0B", "\\x0B"},
        // These have other meanings in PCRE2 than in Oniguruma.
        {'Q', "", ""},
        {'E', "", ""},
        {'C', "", ""},
        {'M', "", ""},
    };
  }();
  return table;
}

// Characters of Unicode 14 that became alphabetic or lowercase in Unicode 15 to 16. Oniguruma has
// the tables of Unicode 16, and PCRE2's may be older.
#define NEWLY_ALPHABETIC "\\x{363}-\\x{36F}\\x{C04}\\x{F82}\\x{F83}\\x{1DD3}-\\x{1DE6}\\x{11080}\\x{11081}"
#define NEWLY_LOWERCASE "\\x{10FC}\\x{A7F2}-\\x{A7F4}\\x{AB69}"

// Translations of POSIX classes such as [:alpha:], as members of a class.
struct PosixClass {
  std::string_view name, member;
};
constexpr PosixClass posix_classes[] = {
    {"alnum", "\\p{Alphabetic}" NEWLY_ALPHABETIC "\\p{Nd}"},
    {"alpha", "\\p{Alphabetic}" NEWLY_ALPHABETIC},
    {"ascii", "\\x00-\\x7F"},
    {"blank", "\\p{Zs}\\t"},
    {"cntrl", "\\p{Cc}"},
    {"digit", "\\p{Nd}"},
    {"lower", "\\p{Lowercase}" NEWLY_LOWERCASE},
    {"punct", "\\p{P}\\p{S}"},
    {"space", "\\p{White_Space}"},
    {"upper", "\\p{Uppercase}"},
    {"word", alphanumeric_members},
    {"xdigit", hexadecimal},
};

// Translates one expression to PCRE2's syntax (to_pcre2).
class Translation {
 public:
  explicit Translation(std::string_view expression) : text_(expression) {}

  std::string run() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\\') {
        escape();
      } else if (brackets_ > 0) {
        within_brackets(c);
      } else if (c == '[') {
        atom_ = out_.size();
        open_bracket();
      } else if (c == '(') {
        open_group();
      } else if (c == ')') {
        if (groups_.size() == 1) bad_component("a ) without its (");
        close_groups();
        atom_ = groups_.back().begin;
        groups_.pop_back();
        put(")");
      } else if (c != '{' || !interval()) {
        if (c != '*' && c != '+' && c != '?') atom_ = out_.size();
        put(character_text());
      }
    }
    close_groups();
    return std::move(out_);
  }

 private:
  struct Group {
    std::size_t begin;  // offset in out_
    int options = 0;    // number of groups opened for options such as (?i)
  };

  void put(std::string_view text) {
    out_ += text;
    at_ += text.size();
  }
  std::string_view character_text() const { return text_.substr(at_, character_at(text_, at_).size); }
  bool next_is(std::string_view text) const { return text_.substr(at_).starts_with(text); }
  void close_groups() { out_.append(static_cast<std::size_t>(groups_.back().options), ')'); }

  void escape() {
    if (at_ + 1 == text_.size()) bad_component("a backslash at the end");
    if (brackets_ == 0) atom_ = out_.size();
    const char name = text_[at_ + 1];
    const auto& table = escapes();
    const auto row = std::find_if(table.begin(), table.end(), [&](const Escape& e) { return e.name == name; });
    if (row != table.end()) {
      const std::string& stands = brackets_ > 0 ? row->member : row->outside;
      if (stands.empty()) bad_component("\\{}{} is not supported", name, brackets_ > 0 ? " within brackets" : "");
      out_ += stands;
      at_ += 2;
    } else if (name == 'u') {
      const std::string_view digits = text_.substr(at_ + 2, 4);
      if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos)
        bad_component("\\u without four hexadecimal digits");
      out_ += fmt::format("\\x{{{}}}", digits);
      at_ += 6;
    } else if ((name == 'p' || name == 'P') && text_.substr(at_ + 2, 1) == "{") {
      property(name);
    } else {
      put("\\");
      put(character_text());
    }
  }

  // Translates \p{NAME} or \P{NAME}. NAME is a script or a category. PCRE2 includes the extensions
  // of a script unless its name has the prefix "sc:".
  void property(char p) {
    const std::size_t end = text_.find('}', at_);
    if (end == text_.npos) bad_component("\\p{{ without its }}");
    std::string_view name = text_.substr(at_ + 3, end - at_ - 3);
    const std::string_view no = name.starts_with('^') ? "^" : "";
    name.remove_prefix(no.size());
    const std::string script = fmt::format("\\{}{{{}sc:{}}}", p, no, name);
    int error;
    std::size_t where;
    const bool known = name.size() > 2 && compiled(script, usual, error, where);
    out_ += known ? script : text_.substr(at_, end + 1 - at_);
    at_ = end + 1;
  }

  // Returns the end of the class member at `at`: an escape, [:name:], a class or a character.
  std::size_t behind_member(std::size_t at) const {
    if (text_[at] == '\\') return std::min(at + 2, text_.size());
    if (text_.substr(at).starts_with("[:")) {
      const std::size_t end = text_.find(":]", at);
      if (end != text_.npos) return end + 2;
    }
    return text_[at] == '[' ? behind_class(at, nullptr) : at + 1;
  }
  // Returns the end of the class at `at`. If the class has the operator &&, appends its operands to
  // `operands`, as classes; nullptr to ignore them.
  std::size_t behind_class(std::size_t at, std::vector<std::string>* operands) const {
    ++at;
    if (at < text_.size() && text_[at] == '^') ++at;
    std::size_t begin = at, members = 0, last = at;
    const auto add = [&](std::size_t end) {
      if (!operands) return;
      const std::string_view operand = text_.substr(begin, end - begin);
      if (members == 0) bad_component("&& without a class on both sides is not supported");
      operands->push_back(members == 1 && text_[last] == '[' ? std::string(operand) : fmt::format("[{}]", operand));
    };
    while (at < text_.size()) {
      if (text_[at] == ']' && at > begin) {
        if (operands && !operands->empty()) add(at);
        return at + 1;
      }
      if (text_.substr(at).starts_with("&&")) {
        add(at);
        at += 2;
        begin = at;
        members = 0;
        continue;
      }
      last = at;
      ++members;
      at = behind_member(at);
    }
    bad_component("[ without its ]");
  }
  // Translates an intersection of classes, which PCRE2 lacks: all but the last become lookaheads.
  // Returns false if there is no intersection.
  bool intersection() {
    std::vector<std::string> operands;
    const std::size_t end = behind_class(at_, &operands);
    if (operands.empty()) return false;
    std::string all;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const std::string one = Translation(operands[i]).run();
      all += i + 1 < operands.size() ? fmt::format("(?={})", one) : one;
    }
    const bool negated = text_.substr(at_).starts_with("[^");
    out_ += negated ? fmt::format("(?:(?!{})(?s:.))", all) : fmt::format("(?:{})", all);
    at_ = end;
    return true;
  }

  void open_bracket() {
    if (intersection()) return;
    brackets_ = 1;
    put("[");
    if (next_is("^")) put("^");
    literal_at_once("]");
  }
  // Escapes the next character if it is `c`: literal in Oniguruma, but special in PCRE2, in whose
  // expression a nested bracket is omitted.
  void literal_at_once(std::string_view c) {
    if (!next_is(c)) return;
    out_ += '\\';
    put(c);
  }
  void within_brackets(char c) {
    if (c == ']') {
      if (--brackets_ == 0) return put("]");
      ++at_;
      literal_at_once("-");
    } else if (next_is("[:")) {
      const std::size_t end = text_.find(":]", at_);
      if (end == text_.npos) bad_component("[: without its :]");
      const std::string_view name = text_.substr(at_ + 2, end - at_ - 2);
      const auto* found = std::find_if(std::begin(posix_classes), std::end(posix_classes),
                                       [&](const PosixClass& posix) { return posix.name == name; });
      if (found == std::end(posix_classes)) bad_component("[:{}:] is not supported", name);
      out_ += found->member;
      at_ = end + 2;
    } else if (c == '[') {
      if (next_is("[^")) bad_component("[^ within brackets is not supported");
      ++at_;
      ++brackets_;
      literal_at_once("-");
      literal_at_once("]");
    } else if (next_is("&&")) {
      bad_component("&& within brackets within brackets is not supported");
    } else {
      put(character_text());
    }
  }

  void open_group() {
    const std::size_t begin = out_.size();
    const std::size_t end = text_.find_first_not_of("imx-", at_ + 2);
    if (next_is("(?") && end != text_.npos && end > at_ + 2 && (text_[end] == ')' || text_[end] == ':')) {
      std::string options(text_.substr(at_, end - at_));
      std::replace(options.begin(), options.end(), 'm', 's');
      out_ += options + ':';
      at_ = end + 1;
      if (text_[end] == ')') {
        ++groups_.back().options;
        return;
      }
    } else {
      put("(");
      if (next_is("?")) {
        // ?: ?= ?! ?> ?<= ?<! ?<name>
        const std::size_t kind = text_.find_first_not_of("?<", at_);
        put(text_.substr(at_, std::min(kind, text_.size()) - at_));
        if (at_ < text_.size()) put(character_text());
      }
    }
    groups_.push_back({begin});
  }

  // Translates {n}, {n,}, {,m} or {n,m}. Returns false if the brace is a literal character.
  bool interval() {
    const std::size_t end = text_.find('}', at_);
    if (end == text_.npos) return false;
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    const std::size_t comma = inside.find(',');
    const bool exact = comma == inside.npos;
    const std::string_view low = inside.substr(0, comma), high = exact ? "" : inside.substr(comma + 1);
    const auto number = [](std::string_view s) { return s.find_first_not_of("0123456789") == s.npos; };
    if (!number(low) || !number(high) || (low.empty() && high.empty())) return false;
    out_ += exact ? fmt::format("{{{}}}", low) : fmt::format("{{{},{}}}", low.empty() ? "0" : low, high);
    at_ = end + 1;
    if (next_is("+") || (exact && next_is("?"))) {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = 0;  // offset in out_ of the atom to which the next quantifier applies
  int brackets_ = 0;      // number of open brackets
  std::vector<Group> groups_ = {{0}};
};

double seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

std::string to_pcre2(std::string_view expression) {
  if (expression.size() > longest) bad_component("it has {} bytes", expression.size());
  return Translation(expression).run();
}

Regex::Regex(std::string_view pattern, std::uint32_t options) : expression_(pattern) {
  int error;
  std::size_t where;
  code_ = compiled(pattern, options, error, where);
  if (!code_) bad_component("{} (at byte {} of {})", pcre2_message(error), where, pattern);
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // if it fails, PCRE2 interprets
}

Regex Regex::of(std::string_view expression) {
  try {
    Regex regex(to_pcre2(expression), usual | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT);
    regex.by_windows_ = expression.find("\\G") == expression.npos;  // \G is the start of a search
    regex.by_class_ = true;
    for_each_character(expression, [&](char32_t c, std::size_t, std::string_view) {
      if (stand_in(c) != c) regex.named_ += c;
    });
    return regex;
  } catch (const BadComponent& e) {
    throw BadComponent(fmt::format("the regular expression {} cannot be used: {}", shown(expression), e.what()));
  }
}

Regex Regex::of_text(std::string_view text) {
  return {text, PCRE2_UTF | PCRE2_LITERAL};
}

thread_local MatchTime* MatchTime::current = nullptr;

MatchTime::MatchTime(std::size_t text_bytes)
    : allowed_(2 + 1e-5 * static_cast<double>(text_bytes)), checked_(seconds(CLOCK_MONOTONIC_COARSE)) {
  if (!current) current = this;
}

MatchTime::~MatchTime() {
  if (current == this) current = nullptr;
}

bool MatchTime::is_over() {
  const double now = seconds(CLOCK_MONOTONIC_COARSE), passed = now - checked_;
  window_ = passed > 0.1 ? std::max<std::size_t>(1, window_ / 8) : std::min<std::size_t>(1 << 12, 2 * window_);
  if (passed < 0.05) return false;
  checked_ = now;
  const double used = seconds(CLOCK_THREAD_CPUTIME_ID);
  if (begin_ < 0) begin_ = used - std::min(used, passed);
  return used - begin_ > allowed_;
}

void Regex::find(std::string_view text, std::vector<Match>& matches) const {
  if (!MatchTime::current) {
    const MatchTime time(text.size());
    return find(text, matches);
  }
  MatchTime& time = *MatchTime::current;
  thread_local const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  thread_local const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  if (!data || !context) no_memory("a regular expression's match");
  std::string storage;
  if (by_class_) text = with_stand_ins(text, named_, storage);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto give_up = [&](const std::string& why) {
    bad_input("the tokenizer's regular expression {} cannot be applied to a text of {} bytes: {}", shown(expression_),
              text.size(), why);
  };
  std::size_t last = text.npos;  // end of the last match
  for (std::size_t at = 0; at <= text.size();) {
    // A match begins at one of the characters from `at` to `end`.
    std::size_t end = by_windows_ ? std::min(text.size(), at + time.window_) : text.size();
    while (end < text.size() && end > at && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    pcre2_set_offset_limit(context.get(), by_windows_ ? end : PCRE2_UNSET);
    const auto match = [&](std::uint32_t options) {
      return pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | options, data.get(),
                         context.get());
    };
    int found = match(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
    if (time.is_over()) give_up("it takes too long: use a tokenizer.json with simpler rules");
    if (found == PCRE2_ERROR_NOMATCH) {
      if (end == text.size()) return;
      at = end + character_at(text, end).size;
      continue;
    }
    const std::size_t* ends = pcre2_get_ovector_pointer(data.get());
    if (found < 0 || ends[1] < ends[0] || ends[1] < at)
      give_up(found < 0 ? pcre2_message(found) : "it matches backwards");
    if (ends[0] == ends[1] && ends[0] == last) {
      at += at < text.size() ? character_at(text, at).size : 1;
      continue;
    }
    matches.push_back({ends[0], ends[1]});
    at = last = ends[1];
  }
}

}  // namespace sy
