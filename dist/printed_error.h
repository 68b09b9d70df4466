// Whether this process has printed an error.
#pragma once

namespace sy {

// Returns true after print_error() has printed an error. A warning is no error.
bool has_printed_error();

}  // namespace sy
