// Reference implementation of the operations of kernels/ops/: plain loops in double precision. It
// defines each operation. The self-test and the tests compare devices with it.
//
// It shares no code with the kernels; the cases of noise share the Philox generator. Shapes are
// those of kernels/ops/. All arrays are row-major doubles, even those of integers. The array of an
// absent operand is empty.
//
// Gradients are finite differences of these functions. The gradients of attention and of index
// scores alone are written out, and tests compare them with finite differences.
#pragma once

#include <numeric>
#include <vector>

#include "kernels/check.h"
#include "kernels/tensor.h"

namespace sy::reference {

using Numbers = std::vector<double>;

inline Index whole(double x) {
  return static_cast<Index>(x);
}

inline double dot(const Numbers& a, const Numbers& b) {
  SY_ASSERT(a.size() == b.size(), "dot of {} and {} numbers", a.size(), b.size());
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace sy::reference
