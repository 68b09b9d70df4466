#include "kernels/ops/batch_norm.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const BatchNormSums& op) {
  Operands(op.name)
      .real("x", op.x, 2)
      .optional("mask", op.mask, {op.x.dim(0)}, DType::i32)
      .is("sums", op.sums, {2 * op.x.dim(1) + 1}, DType::f64);
}

void check(const BatchNormMoments& op) {
  const Operands check = Operands(op.name).dims("moments", op.moments, 1);
  const Index d = op.moments.dim(0) / 2;
  SY_ASSERT(op.sums || op.averages, "{}: neither sums nor averages", op.name);
  check.is("moments", op.moments, {2 * d + 1})
      .optional("sums", op.sums, {2 * d + 1}, DType::f64)
      .optional("averages", op.averages, {2, d});
}

void check(const BatchNormForward& op) {
  const Operands check = Operands(op.name).real("x", op.x, 2);
  const Index t = op.x.dim(0), d = op.x.dim(1);
  check.same("weight", op.weight, {d}, op.x)
      .same("y", op.y, {t, d}, op.x)
      .is("moments", op.moments, {2 * d + 1})
      .optional("bias", op.bias, {d}, op.x.dtype());
}

void check(const BatchNormGradientSums& op) {
  const Operands check = Operands(op.name).real("x", op.x, 2);
  const Index t = op.x.dim(0), d = op.x.dim(1);
  check.same("dy", op.dy, {t, d}, op.x)
      .is("moments", op.moments, {2 * d + 1})
      .is("dweight", op.dweight, {d})
      .optional("dbias", op.dbias, {d})
      .is("sums", op.sums, {2, d}, DType::f64);
}

void check(const BatchNormBackward& op) {
  const Operands check = Operands(op.name).real("x", op.x, 2);
  const Index t = op.x.dim(0), d = op.x.dim(1);
  check.same("dy", op.dy, {t, d}, op.x)
      .same("weight", op.weight, {d}, op.x)
      .is("moments", op.moments, {2 * d + 1})
      .is("sums", op.sums, {2, d}, DType::f64)
      .optional("mask", op.mask, {t}, DType::i32)
      .same("dx", op.dx, {t, d}, op.x);
}

}  // namespace sy::ops
