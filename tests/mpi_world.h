#pragma once

#include "dist/comm.h"

namespace sy::test {

// All the ranks that the test was launched with.
Comm& world();

}  // namespace sy::test
