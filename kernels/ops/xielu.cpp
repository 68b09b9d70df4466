#include "kernels/ops/xielu.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

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
