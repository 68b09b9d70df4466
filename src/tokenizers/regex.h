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

class Regex {
 public:
  // `tokenizers` reads its expressions as Oniguruma does in Ruby's syntax, which PCRE2's is not: such an expression is put into
  // PCRE2's (to_pcre2). Throws BadComponent where it is none, or cannot be put so.
  static Regex of(std::string_view expression);
  static Regex of_text(std::string_view text);  // that itself

  // Appends all matches in a text of well-formed UTF-8, from left to right, none within another; an empty one is not right
  // behind another. Any number of threads may search at once. Throws InputError where PCRE2 gives up.
  void find(std::string_view text, std::vector<Match>& matches) const;

 private:
  Regex(std::string_view pattern, std::uint32_t options);
  std::shared_ptr<pcre2_real_code_8> code_;
  std::string expression_;
};

// What differs: within brackets, brackets are classes again; \s, \w, \b, \h and \v; \p of scripts; {n,m}+ is not possessive,
// {n}? not lazy; an option such as (?i) holds to the end of its group, across |; m is PCRE2's s.
std::string to_pcre2(std::string_view expression);

}  // namespace sy
