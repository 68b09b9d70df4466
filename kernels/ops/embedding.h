// Embedding: table look-up and its gradient.
#pragma once

#include <string_view>

#include "kernels/ops/list.h"
#include "kernels/tensor.h"

namespace sy::ops {

// y[t] = table[ids[t] - vocab_begin], or zero if this rank does not hold the row.
struct EmbeddingForward {
  static constexpr std::string_view name = "embedding_forward";
  ConstView ids;          // [T] i32
  ConstView table;        // [V, D] c
  Index vocab_begin = 0;  // index of the first row of `table`
  View y;                 // [T, D] c
};

// dtable[ids[t] - vocab_begin] += dy[t], in the order of tokens.
struct EmbeddingBackward {
  static constexpr std::string_view name = "embedding_backward";
  ConstView ids;          // [T] i32
  ConstView dy;           // [T, D] c
  Index vocab_begin = 0;  // index of the first row of `dtable`
  View dtable;            // [V, D] +=
};

}  // namespace sy::ops
