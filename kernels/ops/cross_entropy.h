// Cross-entropy loss with a z-loss, over a vocabulary that may be sharded over ranks. A target of
// -1 carries no loss.
#pragma once

#include "kernels/ops/operation.h"

namespace sy {

struct CrossEntropyDesc {
  Index vocab_begin = 0;  // vocabulary index of the first logit of this rank's shard
  float softcap = 0.0f;   // cap * tanh(logit / cap); 0 means no cap
  // Factor of the mean of squared logsumexps (Chowdhery et al., "PaLM", 2022)
  double z_loss = 0;
};

namespace ops {

// Contribution of this rank's vocabulary shard to the loss of each token.
struct CrossEntropyForward {
  static constexpr std::string_view name = "cross_entropy_forward";
  ConstView logits;   // [T, V], before the soft cap
  ConstView targets;  // [T] i32
  CrossEntropyDesc desc;
  // [T, 3], after the soft cap: largest logit, sum exp(logit - largest), logit of the target (0 if
  // another rank holds it)
  View partial;
  bool is_empty() const { return partial.elements() == 0; }
  Cost cost() const { return Cost().reads(logits, targets).writes(partial); }
};

// Combines P vocabulary shards.
struct CrossEntropyLoss {
  static constexpr std::string_view name = "cross_entropy_loss";
  ConstView partials;  // [P, T, 3] of CrossEntropyForward
  ConstView targets;   // [T] i32
  View lse;            // [T]
  View loss;           // [T] = lse - logit of the target; 0 if the target is -1
  bool is_empty() const { return loss.elements() == 0; }
  Cost cost() const { return Cost().reads(partials, targets).writes(lse, loss); }
};

// sums += the sum of losses, and the sum of lse^2 over tokens with a target.
struct LossSums {
  static constexpr std::string_view name = "loss_sums";
  ConstView losses;   // [T]
  ConstView lse;      // [T]
  ConstView targets;  // [T] i32
  View sums;          // [2] f64 +=
  bool is_empty() const { return losses.elements() == 0; }
  Cost cost() const { return Cost().reads(losses, lse, targets); }
};

// dlogits = (softmax - onehot + z_loss * 2 * lse * softmax) / total; 0 if the target is -1.
// If there is a soft cap, softmax is that of the capped logits, and dlogits has the derivative of
// the cap as a further factor.
struct CrossEntropyBackward {
  static constexpr std::string_view name = "cross_entropy_backward";
  ConstView logits;   // [T, V], before the soft cap
  ConstView targets;  // [T] i32
  ConstView lse;      // [T]
  // [1] f64, the number of tokens with a target on all ranks; the loss is a mean over them
  ConstView total;
  CrossEntropyDesc desc;
  View dlogits;  // [T, V] c, which may be `logits` itself
  bool is_empty() const { return logits.elements() == 0; }
  Cost cost() const { return Cost().reads(logits, targets, lse, total).writes(dlogits); }
};

}  // namespace ops

}  // namespace sy
