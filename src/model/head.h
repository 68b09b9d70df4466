// The output: logits = x W^T (+ b) over the vocabulary, and the cross-entropy, a chunk of tokens at a time so that the
// [tokens, V] logits are never held whole. Vocabulary-parallel: each rank holds a run of the rows of W and of b.
#pragma once

#include "src/config.h"
#include "src/model/linear.h"

namespace sy {

class Head {
 public:
  // weight: [V, D]; first_row: the vocabulary id of its first local row.
  Head(const Config& config, ParamStore& store, Param weight, Index first_row);

  // The cross-entropy of the batch's targets. x: [T, D]. Adds the own tokens' to sums: [2] f64 of Backend::loss_sums, where
  // given. Where dx: [T, D] is given, it becomes the gradient by x of (sum of losses + z-losses) / the step's targets, and
  // those by W and b are added to their gradients.
  void loss(const Device& device, const Batch& batch, ConstView x, View dx, View sums) const;

  // [n, vocab] of n tokens, on the host, of every rank's run of the vocabulary. x: [n, D], the same on all ranks.
  std::vector<float> logits(const Device& device, ConstView x, Index vocab) const;

 private:
  // logits: [n, V] of n tokens and the vocabulary held here, before they are capped. x: [n, D]
  void own_logits(const Device& device, ConstView x, View logits) const;

  Param weight_;
  CrossEntropyDesc desc_;
  float scale_;  // of the logits
  Linear linear_;
};

}  // namespace sy
