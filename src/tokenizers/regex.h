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

// Bounds the processor time that this thread's expressions spend on one text while the object lives:
// some seconds, and more for a long text. An expression of a foreign tokenizer.json may need hours.
// Objects within another one have no effect.
class MatchTime {
 public:
  explicit MatchTime(std::size_t text_bytes);
  ~MatchTime();
  MatchTime(const MatchTime&) = delete;
  MatchTime& operator=(const MatchTime&) = delete;

 private:
  friend class Regex;
  bool is_over();  // cheap: reads the processor's clock a few times in a second
  static thread_local MatchTime* current;
  const double allowed_;             // seconds
  double begin_ = -1, checked_ = 0;  // processor time of the first check; wall-clock time of the last one
  std::size_t window_ = 64;          // positions that one call of PCRE2 tries
};

class Regex {
 public:
  // `tokenizers` reads its expressions as Oniguruma does in Ruby's syntax, which PCRE2's is not: such an expression is put into
  // PCRE2's (to_pcre2). Throws BadComponent where it is none, or cannot be put so.
  static Regex of(std::string_view expression);
  static Regex of_text(std::string_view text);  // that itself

  // Appends all matches in a text of well-formed UTF-8, from left to right, none within another; an empty one is not right
  // behind another. Any number of threads may search at once. Throws InputError where PCRE2 gives up, or if the time of
  // MatchTime is over.
  void find(std::string_view text, std::vector<Match>& matches) const;

 private:
  Regex(std::string_view pattern, std::uint32_t options);
  std::shared_ptr<pcre2_real_code_8> code_;
  bool by_windows_ = false;  // an attempt may take long: between some, the time is checked
  bool by_class_ = false;    // newer characters of a text match as their stand-ins (unicode.h)
  std::u32string named_;     // newer characters of the expression, which match as they are
  std::string expression_;
};

// What differs: within brackets, brackets are classes again; \s, \w, \b, \h and \v; \p of scripts; {n,m}+ is not possessive,
// {n}? not lazy; an option such as (?i) holds to the end of its group, across |; m is PCRE2's s.
std::string to_pcre2(std::string_view expression);

}  // namespace sy
