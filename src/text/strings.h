// String functions for messages, lists and shell commands.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sy {

// Returns the name in `known` nearest to `name`. Empty if no name is near. The edit distance
// counts a swap of neighbours as one edit.
std::string nearest(const std::string& name, const std::vector<std::string>& known);

struct Renamed {
  std::string_view old_name, new_name;
};
// Returns the new name of `name`. Empty if the table does not have it.
std::string_view new_name_of(std::string_view name, std::span<const Renamed> table);

// Removes blanks, tabs and line ends at both ends.
std::string_view trimmed(std::string_view text);
// Returns the items between commas, trimmed. A comma at the end adds no empty item.
std::vector<std::string> split_list(std::string_view text);
void replace_all(std::string& text, std::string_view from, std::string_view to);
// Quotes an argument for a shell, unless it has only the characters of plain names and paths.
std::string shell_quote(const std::string& argument);
// Returns the text as a field of CSV, quoted as RFC 4180 says if that is necessary.
std::string csv_field(const std::string& text);
std::string join(const std::vector<std::string>& items, std::string_view separator = "; ");

}  // namespace sy
