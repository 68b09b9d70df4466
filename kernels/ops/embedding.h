// Embedding: table look-up and its gradient.
#pragma once

#include "kernels/ops/operation.h"

namespace sy::ops {

// y[t] = table[ids[t] - vocab_begin], or zero if this rank does not hold the row.
struct EmbeddingForward {
  static constexpr std::string_view name = "embedding_forward";
  ConstView ids;          // [T] i32
  ConstView table;        // [V, D] c
  Index vocab_begin = 0;  // index of the first row of `table`
  View y;                 // [T, D] c
  // It reads as much of the table as it writes of y.
  Cost cost() const { return Cost().reads(ids, y).writes(y); }
};

// dtable[ids[t] - vocab_begin] += dy[t], in the order of tokens.
struct EmbeddingBackward {
  static constexpr std::string_view name = "embedding_backward";
  ConstView ids;          // [T] i32
  ConstView dy;           // [T, D] c
  Index vocab_begin = 0;  // index of the first row of `dtable`
  View dtable;            // [V, D] +=
  bool is_empty() const { return dy.elements() == 0 || dtable.elements() == 0; }
  // It updates one row of the table for each row of dy.
  Cost cost() const { return Cost().reads(ids, dy).updates(dy); }
};

}  // namespace sy::ops
