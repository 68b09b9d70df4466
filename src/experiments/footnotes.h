// Numbered notes under a table.
#pragma once

#include <string>
#include <vector>

namespace sy {

// Notes in order of first use, without duplicates. Numbers start at 1.
class Footnotes {
 public:
  // Adds new texts, and returns the marks of a cell, such as " [1, 3]"; "" if `texts` is empty.
  std::string marks(const std::vector<std::string>& texts);
  // Returns one line per note: before + "[1] TEXT".
  std::string lines(const std::string& before = "") const;
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

}  // namespace sy
