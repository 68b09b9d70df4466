// Reference pages that the program generates from its own tables.
#pragma once

#include <string>

#include "dist/comm.h"

namespace sy {

// Returns the manual page switchyard(1), in the man macros of roff.
std::string man_page(Comm& world);

// Returns docs/reference/cli.md: every command with its usage and its options, as Markdown.
std::string command_page(Comm& world);

// Returns docs/reference/config.md: every key with its default, its values and its meaning, as
// Markdown.
std::string config_page();

}  // namespace sy
