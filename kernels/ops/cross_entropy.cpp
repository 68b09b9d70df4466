#include "kernels/ops/cross_entropy.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const CrossEntropyForward& op) {
  const Operands check = Operands(op.name).dims("logits", op.logits, 2);
  check.is("targets", op.targets, {op.logits.dim(0)}, DType::i32).is("partial", op.partial, {op.logits.dim(0), 3});
}

void check(const CrossEntropyLoss& op) {
  const Operands check = Operands(op.name).dims("partials", op.partials, 3);
  const Index t = op.partials.dim(1);
  check.is("partials", op.partials, {op.partials.dim(0), t, 3})
      .is("targets", op.targets, {t}, DType::i32)
      .is("lse", op.lse, {t})
      .is("loss", op.loss, {t});
  SY_ASSERT(op.partials.dim(0) > 0, "{}: partials {} of no shard", op.name, op.partials.shape().str());
}

void check(const LossSums& op) {
  const Operands check = Operands(op.name).dims("losses", op.losses, 1);
  check.is("lse", op.lse, op.losses.shape())
      .is("targets", op.targets, op.losses.shape(), DType::i32)
      .is("sums", op.sums, {2}, DType::f64);
}

void check(const CrossEntropyBackward& op) {
  const Operands check = Operands(op.name).dims("logits", op.logits, 2).real("dlogits", op.dlogits, 2);
  check.is("targets", op.targets, {op.logits.dim(0)}, DType::i32)
      .is("lse", op.lse, {op.logits.dim(0)})
      .is("total", op.total, {1}, DType::f64)
      .is("dlogits", op.dlogits, op.logits.shape(), op.dlogits.dtype());
}

}  // namespace sy::ops
