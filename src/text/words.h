// Words for messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sy {

// The name of `known` nearest to `given`, by an edit distance in which a swap of neighbours counts once; empty if none is
// near.
std::string nearest(const std::string& given, const std::vector<std::string>& known);

// Without the blanks, tabs and ends of lines around it.
std::string_view trimmed(std::string_view text);
// The items between commas, trimmed. Behind a comma at the end there is none.
std::vector<std::string> split_list(std::string_view text);
void replace_all(std::string& text, std::string_view from, std::string_view to);
// Returns a word as a shell takes it: between quotes if it has other characters than those of
// plain names and paths.
std::string shell_word(const std::string& word);
std::string join(const std::vector<std::string>& items, std::string_view separator = "; ");

}  // namespace sy
