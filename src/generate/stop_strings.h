// Strings that end a text where they first appear, though they may begin in one token and end in another.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sy {

// Where the first of them begins in `text`; npos: none does. None may be empty.
std::size_t find_stop(std::string_view text, const std::vector<std::string>& stops);

// How many bytes of `text`, which holds none of them, stay before whatever follows: what is behind may begin one.
std::size_t before_possible_stop(std::string_view text, const std::vector<std::string>& stops);

}  // namespace sy
