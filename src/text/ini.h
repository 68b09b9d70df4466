// INI text: [section] lines, key = value lines, comments.
//
// `#` or `;` begins a comment at the start of a line or after a blank; within a word it is a
// character, unless Comments says otherwise. A value between double quotes is taken as it stands,
// with \" \\ and \xHH for what cannot be written otherwise. A byte order mark and carriage returns at the ends of lines are passed over.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sy {

struct IniEntry {
  std::string key;  // "section.key"
  std::string value;
  int line = 0;  // from 1 on
};
struct IniProblem {
  int line = 0;
  std::string what;
};
struct IniText {
  std::vector<IniEntry> entries;     // in their order, repeated ones too
  std::vector<IniProblem> problems;  // lines that are none of the above
};
// anywhere: `#` begins a comment within a word, too, and `;` only at the start of a line.
enum class Comments { after_blanks, anywhere };
// A text with control characters is binary: one problem, and no entries.
IniText read_ini(std::string_view text, Comments comments = Comments::after_blanks);

// A value as it is written behind `key = `: between quotes where it might be read otherwise. Any bytes come back.
std::string ini_value(std::string_view value);

}  // namespace sy
