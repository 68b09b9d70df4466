#pragma once

#include "dist/shard.h"

namespace sy::test {

// Where element i of a box lies in the row-major whole.
inline Index whole_index(const Shape& shape, const Box& box, Index i) {
  Index at = 0, stride = 1;
  for (int d = shape.size() - 1; d >= 0; --d) {
    at += (box.begin[d] + i % box.size[d]) * stride;
    stride *= shape[d];
    i /= box.size[d];
  }
  return at;
}

}  // namespace sy::test
