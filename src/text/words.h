// Words for messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sy {

// The name of `known` nearest to `given` (edit distance), or "" when none is near.
std::string nearest(const std::string& given, const std::vector<std::string>& known);

std::string join(const std::vector<std::string>& items, std::string_view separator = "; ");

}  // namespace sy
