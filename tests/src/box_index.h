#pragma once

#include "dist/shard.h"

namespace sy::test {

// Row-major index, in the whole tensor, of element i of a box.
//   physical_to_logical: [E] logical index of each physical one, along the first dimension; empty
//                        if they are equal.
inline Index whole_index(const Shape& shape, const Box& box, Index i,
                         const std::vector<Index>& physical_to_logical = {}) {
  Index at = 0, stride = 1;
  for (int d = shape.size() - 1; d >= 0; --d) {
    const Index index = box.begin[d] + i % box.size[d];
    at += (d == 0 && !physical_to_logical.empty() ? physical_to_logical[index] : index) * stride;
    stride *= shape[d];
    i /= box.size[d];
  }
  return at;
}

}  // namespace sy::test
