#include "kernels/ops/activation.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const ActivationForward& op) {
  SY_ASSERT(op.activation.act != Activation::xielu, "{}: see XieluForward", op.name);
  const Operands check = Operands(op.name).real("y", op.y, 2);
  const Index r = op.y.dim(0), f = op.y.dim(1);
  check.same("h", op.h, {r, op.activation.gated ? 2 * f : f}, op.y).optional("row_scale", op.row_scale, {r});
}

void check(const ActivationBackward& op) {
  SY_ASSERT(op.activation.act != Activation::xielu, "{}: see XieluBackward", op.name);
  const Operands check = Operands(op.name).real("dy", op.dy, 2);
  const Index r = op.dy.dim(0), f = op.dy.dim(1);
  const Shape hidden = {r, op.activation.gated ? 2 * f : f};
  check.same("h", op.h, hidden, op.dy)
      .optional("row_scale", op.row_scale, {r})
      .same("dh", op.dh, hidden, op.dy)
      .optional("drow_scale", op.drow_scale, {r})
      .optional("y", op.y, op.dy.shape(), op.dy.dtype());
}

void check(const XieluForward& op) {
  Operands(op.name).real("y", op.y, 2).same("h", op.h, op.y.shape(), op.y).is("parameters", op.parameters, {2});
}

void check(const XieluBackward& op) {
  Operands(op.name)
      .real("dy", op.dy, 2)
      .same("h", op.h, op.dy.shape(), op.dy)
      .is("parameters", op.parameters, {2})
      .same("dh", op.dh, op.dy.shape(), op.dy)
      .optional("dparameters", op.dparameters, {op.dy.dim(0), 2});
}

}  // namespace sy::ops
