// Token ids to rows of a table. Vocabulary-parallel: each rank holds a run of the rows, [first row, first row + V).
#pragma once

#include "src/model/pass.h"
#include "src/params/store.h"

namespace sy {

class Embedding {
 public:
  explicit Embedding(ParamStore& store);

  // x: [T, D] = the rows of ids: [B * S], own tokens.
  void forward(const Device& device, ConstView ids, View x) const;
  // The table's gradient += the rows of dx: [T, D], own tokens.
  void backward(const Device& device, ConstView ids, ConstView dx) const;

 private:
  Param table_;  // [V, D]
  Index first_row_;
};

}  // namespace sy
