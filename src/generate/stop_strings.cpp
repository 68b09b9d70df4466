#include "src/generate/stop_strings.h"

#include <algorithm>

namespace sy {

std::size_t find_stop(std::string_view text, const std::vector<std::string>& stops) {
  std::size_t first = text.npos;
  for (const std::string& stop : stops) first = std::min(first, text.find(stop));
  return first;
}

std::size_t before_partial_stop(std::string_view text, const std::vector<std::string>& stops) {
  std::size_t first = text.size();
  for (const std::string& stop : stops)
    for (std::size_t begun = std::min(stop.size() - 1, text.size()); begun > 0; --begun)
      if (text.ends_with(std::string_view(stop).substr(0, begun))) {
        first = std::min(first, text.size() - begun);
        break;
      }
  return first;
}

}  // namespace sy
