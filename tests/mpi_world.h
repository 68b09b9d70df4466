#pragma once

#include <string>

#include "dist/comm.h"

namespace sy::test {

// All the ranks that the test was launched with.
Comm& world();

// What the layouts are tested on: --backend=cpu|cuda, --dtype=f32|bf16.
struct DeviceName {
  std::string backend = "cpu", dtype = "f32";
};
inline DeviceName device;

}  // namespace sy::test
