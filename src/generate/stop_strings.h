// Strings that end a text where they first appear. A string may begin in one token and end in
// another.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sy {

// Returns the offset in `text` of the first stop string; npos if there is none. No stop string may
// be empty.
std::size_t find_stop(std::string_view text, const std::vector<std::string>& stops);

// Returns how many bytes of `text` are certainly not part of a stop string. `text` contains no
// complete stop string; the bytes after the result may begin one.
std::size_t before_partial_stop(std::string_view text, const std::vector<std::string>& stops);

}  // namespace sy
