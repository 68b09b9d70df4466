// The output: logits = x W^T over the vocabulary, and the cross-entropy, a chunk of tokens at a time so that the
// [tokens, V] logits are never held whole. Vocabulary-parallel: each rank holds a run of the rows of W.
#pragma once

#include "src/config.h"
#include "src/model/linear.h"

namespace sy {

class Head {
 public:
  // weight: [V, D]; first_row: the vocabulary id of its first local row.
  Head(const Config& config, Param weight, Index first_row);

  // losses: [B * S] = the cross-entropy of each token in nats, 0 where the target is -1. x: [T, D], targets: [B * S].
  // Adds up the own tokens' in ctx.statistics. Where dx: [T, D] is given, it becomes the gradient by x of (sum of losses +
  // z-losses) / global tokens, and that by W is added to its gradient.
  void loss(const Context& ctx, ConstView x, ConstView targets, View losses, View dx) const;

  // logits: [n, V] of n tokens, the whole vocabulary held here. x: [n, D]
  void logits(const Context& ctx, ConstView x, View logits) const;

 private:
  Param weight_;
  CrossEntropyDesc desc_;
  double z_loss_;
  Linear linear_;
};

}  // namespace sy
