#include "kernels/ops/random.h"

#include "kernels/cost.h"
#include "kernels/device.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const Draw& op) {
  Operands(op.name).dims("x", op.x, 2).is("index", op.index, {op.x.dim(0)}, DType::i64);
}

Cost cost(const Draw& op) {
  return Cost().reads(op.index).writes(op.x);
}

void run(Device& device, const Draw& op) {
  check(op);
  if (op.x.elements() > 0) device.execute(op);
}

void check(const Jitter& op) {
  Operands(op.name)
      .real("x", op.x, 2)
      .is("index", op.index, {op.x.dim(0)}, DType::i64)
      .same("y", op.y, op.x.shape(), op.x);
}

Cost cost(const Jitter& op) {
  return Cost().reads(op.x, op.index, op.accumulate ? op.y : View()).writes(op.y);
}

void run(Device& device, const Jitter& op) {
  check(op);
  if (op.x.elements() > 0) device.execute(op);
}

void check(const NoisyGatingForward& op) {
  Operands(op.name)
      .dims("x", op.x, 2)
      .is("index", op.index, {op.x.dim(0)}, DType::i64)
      .is("stddev", op.stddev, op.x.shape());
}

Cost cost(const NoisyGatingForward& op) {
  return Cost().reads(op.stddev, op.index).updates(op.x);
}

void run(Device& device, const NoisyGatingForward& op) {
  check(op);
  if (op.x.elements() > 0) device.execute(op);
}

void check(const NoisyGatingBackward& op) {
  Operands(op.name)
      .real("dx", op.dx, 2)
      .is("index", op.index, {op.dx.dim(0)}, DType::i64)
      .is("stddev", op.stddev, op.dx.shape())
      .same("dstddev", op.dstddev, op.dx.shape(), op.dx);
}

Cost cost(const NoisyGatingBackward& op) {
  return Cost().reads(op.dx, op.stddev, op.index).writes(op.dstddev);
}

void run(Device& device, const NoisyGatingBackward& op) {
  check(op);
  if (op.dx.elements() > 0) device.execute(op);
}

}  // namespace sy::ops
