#include "kernels/ops/optimizer.h"

#include "kernels/cost.h"
#include "kernels/device.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const ClipCoefficient& op) {
  Operands(op.name).is("squares", op.squares, {1}, DType::f64).is("coefficient", op.coefficient, {1});
}

Cost cost(const ClipCoefficient&) {
  return {};
}

void run(Device& device, const ClipCoefficient& op) {
  check(op);
  device.execute(op);
}

void check(const AdamW& op) {
  const Operands check(op.name);
  check.dims("w", op.w, 1).is("coefficient", op.coefficient, {1}).is("step_scalars", op.step_scalars, {3});
  check.is("g", op.g, op.w.shape()).is("m", op.m, op.w.shape()).is("v", op.v, op.w.shape());
  check.optional("rounded", op.rounded, op.w.shape(), DType::bf16);
}

Cost cost(const AdamW& op) {
  return Cost().reads(op.g).updates(op.w, op.m, op.v).writes(op.rounded);
}

void run(Device& device, const AdamW& op) {
  check(op);
  if (op.w.elements() > 0) device.execute(op);
}

void check(const MomentumUpdate& op) {
  const Operands check(op.name);
  check.dims("m", op.m, 1).is("coefficient", op.coefficient, {1}).is("g", op.g, op.m.shape());
}

Cost cost(const MomentumUpdate& op) {
  return Cost().reads(op.g).updates(op.m);
}

void run(Device& device, const MomentumUpdate& op) {
  check(op);
  if (op.m.elements() > 0) device.execute(op);
}

void check(const ApplyUpdate& op) {
  const Operands check(op.name);
  check.dims("w", op.w, 1).is("coefficient", op.coefficient, {1}).is("lr", op.lr, {1});
  check.is("update", op.update, op.w.shape()).optional("rounded", op.rounded, op.w.shape(), DType::bf16);
}

Cost cost(const ApplyUpdate& op) {
  return Cost().reads(op.update).updates(op.w).writes(op.rounded);
}

void run(Device& device, const ApplyUpdate& op) {
  check(op);
  if (op.w.elements() > 0) device.execute(op);
}

}  // namespace sy::ops
