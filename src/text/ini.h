// INI text: [section] lines, key = value lines, comments.
//
// `#` or `;` starts a comment at the start of a line or after a blank. Elsewhere they are ordinary
// characters, unless Comments::anywhere is set.
// A value in double quotes may have the escapes \" \\ and \xHH. A byte order mark and carriage
// returns at the ends of lines are ignored.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sy {

struct IniEntry {
  std::string key;  // "section.key"
  std::string value;
  int line = 0;  // from 1
};
struct IniProblem {
  int line = 0;
  std::string what;
};
struct IniText {
  std::vector<IniEntry> entries;     // in file order, including repeated keys
  std::vector<IniProblem> problems;  // lines that are no section, entry or comment
};
// anywhere: `#` also starts a comment within a word, and `;` does so only at the start of a line.
enum class Comments { after_blanks, anywhere };
// Reads INI text. A text with control characters is binary: it gives one problem and no entries.
IniText read_ini(std::string_view text, Comments comments = Comments::after_blanks);

// Returns a value as it is written after `key = `. It is quoted if it would be read differently
// without quotes. read_ini() returns any bytes unchanged.
std::string ini_value(std::string_view value);

}  // namespace sy
