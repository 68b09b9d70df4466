// Numbered notes under a table.
#pragma once

#include <string>
#include <vector>

namespace sy {

// Each text is listed once, in the order in which rows first refer to it.
class Footnotes {
 public:
  // What a row's cell ends with: " [1, 3]"; empty if there are no texts.
  std::string marks(const std::vector<std::string>& texts);
  // A line for each: before + "[1] TEXT".
  std::string lines(const std::string& before = "") const;
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

}  // namespace sy
