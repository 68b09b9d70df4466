// Elementwise operations, and the sum of squares.
#pragma once

#include "kernels/ops/operation.h"

namespace sy::ops {

// x = value
struct Fill {
  static constexpr std::string_view name = "fill";
  View x;  // any shape; f32, or any type if `value` is 0
  float value;
  Cost cost() const { return Cost().writes(x); }
};

// y = x, byte for byte.
struct Copy {
  static constexpr std::string_view name = "copy";
  ConstView x;  // any shape and type
  View y;       // any shape and type of the same number of bytes
  Cost cost() const { return Cost().reads(x).writes(y); }
};

// y = x in the type of y, rounded to nearest, ties to even.
struct Convert {
  static constexpr std::string_view name = "convert";
  ConstView x;  // any shape, f32 or bf16
  View y;       // the shape of x, f32 or bf16
  Cost cost() const { return Cost().reads(x).writes(y); }
};
void run(Device& device, const Convert& op);

// y += x
struct Add {
  static constexpr std::string_view name = "add";
  ConstView x;  // any shape, c
  View y;       // the shape of x, c +=
  Cost cost() const { return Cost().reads(x).updates(y); }
};

// x *= factor
struct Scale {
  static constexpr std::string_view name = "scale";
  View x;  // any shape, f32 or bf16
  float factor;
  Cost cost() const { return Cost().updates(x); }
};

// out += sum x^2, summed in f64.
struct SumSquares {
  static constexpr std::string_view name = "sum_squares";
  ConstView x;  // any shape
  View out;     // [1] f64 +=
  Cost cost() const { return Cost().reads(x); }
};

// out += the sum of the elements' bits, each read as an unsigned integer of its width, modulo 2^32.
// It differs after the change of any one bit. Its order does not matter.
struct BitSum {
  static constexpr std::string_view name = "bit_sum";
  ConstView x;  // any shape, f32 or bf16
  View out;     // [1] i32 +=
  Cost cost() const { return Cost().reads(x); }
};

}  // namespace sy::ops
