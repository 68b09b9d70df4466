#include "kernels/ops/norm.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const NormForward& op) {
  SY_ASSERT(op.desc.kind == NormKind::rmsnorm || op.desc.kind == NormKind::layernorm, "norm_forward: no norm of rows");
  const Operands check = Operands(op.name).real("x", op.x, 2);
  const Index t = op.x.dim(0), d = op.x.dim(1);
  check.same("weight", op.weight, {d}, op.x).same("y", op.y, {t, d}, op.x).is("moments", op.moments, {t, 2});
  check.optional("bias", op.bias, {d}, op.x.dtype());
}

void check(const NormBackward& op) {
  SY_ASSERT(op.desc.kind == NormKind::rmsnorm || op.desc.kind == NormKind::layernorm, "norm_backward: no norm of rows");
  const Operands check = Operands(op.name).real("x", op.x, 2);
  const Index t = op.x.dim(0), d = op.x.dim(1);
  check.same("dy", op.dy, {t, d}, op.x)
      .same("weight", op.weight, {d}, op.x)
      .is("moments", op.moments, {t, 2})
      .same("dx", op.dx, {t, d}, op.x)
      .is("dweight", op.dweight, {d})
      .optional("dbias", op.dbias, {d});
}

}  // namespace sy::ops
