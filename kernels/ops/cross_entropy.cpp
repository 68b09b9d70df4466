#include "kernels/ops/cross_entropy.h"

#include "kernels/cost.h"
#include "kernels/device.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const CrossEntropyForward& op) {
  const Operands check(op.name);
  check.dims("logits", op.logits, 2);
  check.is("targets", op.targets, {op.logits.dim(0)}, DType::i32).is("partial", op.partial, {op.logits.dim(0), 3});
}

Cost cost(const CrossEntropyForward& op) {
  return Cost().reads(op.logits, op.targets).writes(op.partial);
}

void run(Device& device, const CrossEntropyForward& op) {
  check(op);
  if (op.partial.elements() > 0) device.execute(op);
}

void check(const CrossEntropyLoss& op) {
  const Operands check(op.name);
  check.dims("partials", op.partials, 3);
  const Index t = op.partials.dim(1);
  check.is("partials", op.partials, {op.partials.dim(0), t, 3})
      .is("targets", op.targets, {t}, DType::i32)
      .is("lse", op.lse, {t})
      .is("loss", op.loss, {t});
  SY_ASSERT(op.partials.dim(0) > 0, "{}: partials {} of no shard", op.name, op.partials.shape().str());
}

Cost cost(const CrossEntropyLoss& op) {
  return Cost().reads(op.partials, op.targets).writes(op.lse, op.loss);
}

void run(Device& device, const CrossEntropyLoss& op) {
  check(op);
  if (op.loss.elements() > 0) device.execute(op);
}

void check(const LossSums& op) {
  const Operands check(op.name);
  check.dims("losses", op.losses, 1);
  check.is("lse", op.lse, op.losses.shape())
      .is("targets", op.targets, op.losses.shape(), DType::i32)
      .is("sums", op.sums, {2}, DType::f64);
}

Cost cost(const LossSums& op) {
  return Cost().reads(op.losses, op.lse, op.targets);
}

void run(Device& device, const LossSums& op) {
  check(op);
  if (op.losses.elements() > 0) device.execute(op);
}

void check(const CrossEntropyBackward& op) {
  const Operands check(op.name);
  check.dims("logits", op.logits, 2).real("dlogits", op.dlogits, 2);
  check.is("targets", op.targets, {op.logits.dim(0)}, DType::i32)
      .is("lse", op.lse, {op.logits.dim(0)})
      .is("total", op.total, {1}, DType::f64)
      .is("dlogits", op.dlogits, op.logits.shape(), op.dlogits.dtype());
}

Cost cost(const CrossEntropyBackward& op) {
  return Cost().reads(op.logits, op.targets, op.lse, op.total).writes(op.dlogits);
}

void run(Device& device, const CrossEntropyBackward& op) {
  check(op);
  if (op.logits.elements() > 0) device.execute(op);
}

}  // namespace sy::ops
