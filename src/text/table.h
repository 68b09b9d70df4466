// Text tables for people: columns padded to the widest cell, columns of numbers aligned to the right.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sy {

// Columns that UTF-8 text takes on a terminal: combining marks and colour sequences none, East Asian wide
// characters and emoji two. An ill-formed byte counts as one.
int display_width(std::string_view text);
// `text` cut to at most `width` columns, with an ellipsis where something was cut.
std::string fit_width(std::string_view text, int width);

struct Table {
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  // As many cells as the header has; missing ones are empty.
  void row(std::vector<std::string> cells);
  // Header, a rule, the rows; every line ends in '\n' and has no blanks at its end. A column is right-aligned
  // when each of its cells is empty, "-" or begins with a digit (after an optional sign), and one does begin
  // with a digit.
  std::string str() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sy
