// Regular expressions of tokenizer.json, by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace sy {

struct Match {
  std::size_t begin, end;  // bytes of a text
};

// Limits the processor time of this thread's expressions on one text, while the object lives. The
// limit is a few seconds, and more for a long text: a foreign tokenizer.json may have an expression
// that needs hours. A nested object has no effect.
class MatchTime {
 public:
  explicit MatchTime(std::size_t text_bytes);
  ~MatchTime();
  MatchTime(const MatchTime&) = delete;

 private:
  friend class Regex;
  bool is_over();  // cheap: reads the processor's clock a few times per second
  static thread_local MatchTime* current;
  const double allowed_;             // seconds
  double begin_ = -1, checked_ = 0;  // processor time of the first check; wall time of the last
  std::size_t window_ = 64;          // positions that one call of PCRE2 tries
};

class Regex {
 public:
  // Compiles an expression of `tokenizers`, in the Ruby syntax of Oniguruma. Throws BadComponent if
  // it is invalid, or cannot be translated to PCRE2's syntax (to_pcre2).
  static Regex of(std::string_view expression);
  static Regex of_text(std::string_view text);  // matches exactly this text

  // Appends all matches in a text of well-formed UTF-8, from left to right, without overlaps. An
  // empty match is not adjacent to the previous one. Threads may call it concurrently. Throws
  // InputError if PCRE2 gives up, or if the limit of MatchTime is reached.
  void find(std::string_view text, std::vector<Match>& matches) const;

 private:
  Regex(std::string_view pattern, std::uint32_t options);
  std::shared_ptr<pcre2_real_code_8> code_;
  bool by_windows_ = false;  // searches windows of positions, and checks the time between them
  bool by_class_ = false;    // newer characters of a text match as their stand-ins (unicode.h)
  std::u32string named_;     // newer characters in the expression; they match themselves
  std::string expression_;
};

// Translates an expression from Oniguruma's Ruby syntax to PCRE2's. Oniguruma differs as follows:
// - brackets within brackets are classes
// - \s, \w, \b, \h, \v, and \p of scripts have other meanings
// - {n,m}+ is not possessive, and {n}? is not lazy
// - an option such as (?i) applies to the end of its group, across |
// - option m is PCRE2's s
std::string to_pcre2(std::string_view expression);

}  // namespace sy
