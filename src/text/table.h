// Text tables for people: columns padded to the widest cell, columns of numbers aligned to the right.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sy {

// Columns that UTF-8 text takes on a terminal: combining marks and colour sequences none, East Asian wide
// characters and emoji two. An ill-formed byte counts as one.
int display_width(std::string_view text);
// `text` without what a terminal would obey: control characters, but for those of `keep`, become pictures of them, and what is
// no UTF-8 becomes U+FFFD. For what comes from files.
std::string visible(std::string_view text, std::string_view keep = "");
// Bytes of `text` up to a last character of which the rest is still to come.
std::size_t whole_characters(std::string_view text);
// `text` cut to at most `width` columns, with an ellipsis where something was cut.
std::string fit_width(std::string_view text, int width);

struct Table {
  // painted: the last column is the program's own, with colours. All others are shown as visible() says.
  explicit Table(std::vector<std::string> header, bool painted = false)
      : header_(std::move(header)), painted_(painted) {}
  // As many cells as the header has; missing ones are empty.
  void row(std::vector<std::string> cells);
  // Header, a rule, the rows; every line ends in '\n' and has no blanks at its end. A column is right-aligned
  // when each of its cells is empty, "-" or begins with a digit (after an optional sign), and one does begin
  // with a digit.
  std::string str() const;

 private:
  std::vector<std::string> header_;
  bool painted_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sy
