// Inputs of the golden data. Both sides compute them from names (tests/golden/values.py).
#pragma once

#include <cstdint>
#include <string>

namespace sy {

// Element i of the tensor with this name: in [-0.5, 0.5), or around 1.
inline float golden_value(const std::string& name, std::uint32_t i, bool around_one = false) {
  std::uint32_t h = 0;
  for (const char c : name) h = (h * 31 + static_cast<unsigned char>(c)) % 65521;
  std::uint32_t x = (i + 1) * 2654435761u + h * 40503u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return static_cast<float>(x / 4294967296.0 - 0.5 + (around_one ? 1 : 0));
}

}  // namespace sy
