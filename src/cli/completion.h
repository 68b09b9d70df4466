// Candidates for a shell's completion of the word at the cursor.
#pragma once

#include <string>
#include <vector>

#include "dist/comm.h"

namespace sy {

struct CompletionCandidate {
  std::string text;  // ends in '=' or ':' if more follows without a blank
  std::string help;  // a short text; may be empty
};

// Returns the candidates for the last of `args`, which follow the program's name. Empty if the
// word may be a file or any text.
std::vector<CompletionCandidate> completion_candidates(const std::vector<std::string>& args, Comm& world);

}  // namespace sy
