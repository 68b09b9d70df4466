#include "kernels/ops/xielu.h"

#include "kernels/device.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const XieluForward& op) {
  const Operands check(op.name);
  check.real("y", op.y, 2);
  check.same("h", op.h, op.y.shape(), op.y).is("parameters", op.parameters, {2});
}

void check(const XieluBackward& op) {
  const Operands check(op.name);
  check.real("dy", op.dy, 2);
  check.same("h", op.h, op.dy.shape(), op.dy)
      .is("parameters", op.parameters, {2})
      .same("dh", op.dh, op.dy.shape(), op.dy)
      .optional("dparameters", op.dparameters, {op.dy.dim(0), 2});
}

void run(Device& device, const XieluBackward& op) {
  check(op);
  if (op.dy.elements() > 0) return device.execute(op);
  if (op.dparameters) run(device, Fill{.x = op.dparameters, .value = 0});
}

}  // namespace sy::ops
