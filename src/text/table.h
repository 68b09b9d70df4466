// Text tables: columns are padded to the widest cell, and columns of numbers aligned right.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sy {

// Returns the number of terminal columns of UTF-8 text.
// Combining marks and colour sequences have width 0, East Asian wide characters and emoji 2, an
// invalid byte 1.
int display_width(std::string_view text);
// Makes text from files safe for a terminal. Control characters, except those in `keep`, become
// their pictures; invalid UTF-8 becomes U+FFFD.
std::string visible(std::string_view text, std::string_view keep = "");
// Returns the number of bytes of `text` without an incomplete last character.
std::size_t whole_characters(std::string_view text);
// Returns `text` cut to at most `width` columns. If it is cut, it ends with an ellipsis.
std::string fit_width(std::string_view text, int width);
// Divides the text at blanks into lines of at most `width` columns. A wider word has its own line.
std::vector<std::string> wrap_text(const std::string& text, int width);

// Cells of a table, for several forms of output.
struct CellTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

struct Table {
  // painted: the last column may have colour sequences. All other cells pass through visible().
  explicit Table(std::vector<std::string> header, bool painted = false)
      : header_(std::move(header)), painted_(painted) {}
  // Appends a row. Missing cells at its end are empty.
  void row(std::vector<std::string> cells);
  // Returns header, rule and rows. Every line ends in '\n', without blanks before it.
  // A column is aligned right if each cell is empty, "-" or a number, and at least one is a number.
  // A number begins with a digit, after an optional sign.
  std::string str() const;

 private:
  std::vector<std::string> header_;
  bool painted_;
  std::vector<std::vector<std::string>> rows_;
};
std::string text_table(const CellTable& cells);

}  // namespace sy
