#pragma once

#include <string>

#include "dist/comm.h"

namespace sy::test {

// Communicator of all ranks of the test.
Comm& world();

// Device and type of the layout tests: --backend=cpu|cuda, --dtype=f32|bf16.
struct DeviceName {
  std::string backend = "cpu", dtype = "f32";
};
inline DeviceName tested_device;

}  // namespace sy::test
