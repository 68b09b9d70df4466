#include "kernels/ops/optimizer.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const ClipCoefficient& op) {
  Operands(op.name).is("squares", op.squares, {1}, DType::f64).is("coefficient", op.coefficient, {1});
}

void check(const AdamW& op) {
  const Operands check(op.name);
  check.dims("w", op.w, 1).is("coefficient", op.coefficient, {1}).is("step_scalars", op.step_scalars, {3});
  check.is("g", op.g, op.w.shape()).real("m", op.m, 1);
  check.same("m", op.m, op.w.shape(), op.m).same("v", op.v, op.w.shape(), op.m);
  check.optional("rounded", op.rounded, op.w.shape(), DType::bf16).optional("bit_sums", op.bit_sums, {2}, DType::i32);
}

void check(const MomentumUpdate& op) {
  const Operands check(op.name);
  check.real("m", op.m, 1).is("coefficient", op.coefficient, {1}).is("g", op.g, op.m.shape());
}

void check(const ApplyUpdate& op) {
  const Operands check(op.name);
  check.dims("w", op.w, 1).is("coefficient", op.coefficient, {1}).is("lr", op.lr, {1});
  check.real("update", op.update, 1).same("update", op.update, op.w.shape(), op.update);
  check.optional("rounded", op.rounded, op.w.shape(), DType::bf16);
}

}  // namespace sy::ops
