#include "src/experiments/footnotes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace sy {

std::string Footnotes::marks(const std::vector<std::string>& texts) {
  std::set<std::ptrdiff_t> numbers;
  for (const std::string& text : texts) {
    if (std::find(texts_.begin(), texts_.end(), text) == texts_.end()) texts_.push_back(text);
    numbers.insert(std::find(texts_.begin(), texts_.end(), text) - texts_.begin() + 1);
  }
  return numbers.empty() ? "" : fmt::format(" [{}]", fmt::join(numbers, ", "));
}

std::string Footnotes::lines(const std::string& before) const {
  std::string lines;
  for (std::size_t i = 0; i < texts_.size(); ++i) lines += fmt::format("{}[{}] {}\n", before, i + 1, texts_[i]);
  return lines;
}

}  // namespace sy
