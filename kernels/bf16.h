// bf16 on the host.
#pragma once

#include "kernels/dtype.h"

namespace sy {

// An element: reads as a float, and rounds what is assigned to it.
struct Bf16 {
  std::uint16_t bits;
  constexpr operator float() const { return float_of_bf16(bits); }
  constexpr Bf16& operator=(float x) {
    bits = bf16_of_float(x);
    return *this;
  }
};

template <>
struct DTypeOf<Bf16> : std::integral_constant<DType, DType::bf16> {};

}  // namespace sy
