// Output layer: logits = x W^T (+ b) over the vocabulary, and the cross-entropy. It computes a
// chunk of tokens at a time, so the [tokens, V] logits never exist as a whole. Vocabulary-parallel:
// each rank holds V consecutive rows of W and of b.
#pragma once

#include "kernels/ops/cross_entropy.h"
#include "src/config.h"
#include "src/model/linear.h"

namespace sy {

class Head {
 public:
  // weight: [V, D]; first_row: vocabulary id of its first local row.
  Head(const Config& config, ParamStore& store, Param weight, Index first_row);

  // Computes the cross-entropy of the batch's targets. x: [T, D]. With Batch::target_rows, there
  // are no logits of other tokens.
  // - sums: [2] f64 += ops::LossSums of the rank's own tokens; or empty
  // - dx: [T, D] = gradient with respect to x of (sum of losses and z-losses) / the step's targets;
  //   or empty. If it is not empty, the gradients with respect to W and b are added to theirs.
  void loss(const ExecutionContext& context, const Batch& batch, ConstView x, View dx, View sums);

  // Returns the logits [n, vocab] of n tokens on the host, over the whole vocabulary. x: [n, D],
  // the same on all ranks.
  std::vector<float> logits(const ExecutionContext& context, ConstView x, Index vocab) const;

 private:
  // Computes logits: [n, V] over this rank's vocabulary, before the soft cap. x: [n, D].
  void local_logits(const ExecutionContext& context, ConstView x, View logits) const;

  Param weight_;
  Index largest_shard_;  // rows of the largest shard of the vocabulary, equal on all ranks
  CrossEntropyDesc desc_;
  float scale_;  // factor of the logits
  Linear linear_;
};

}  // namespace sy
