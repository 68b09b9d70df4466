#include "kernels/ops/bias.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const BiasForward& op) {
  Operands(op.name).real("y", op.y, 2).same("bias", op.bias, {op.y.dim(1)}, op.y);
}

void check(const BiasBackward& op) {
  Operands(op.name).real("dy", op.dy, 2).is("dbias", op.dbias, {op.dy.dim(1)});
}

namespace {

// Checks the operands of both grouped operations. rows: y or dy
template <class Operation>
void check_grouped(const Operands& check, const Operation& op, const char* name, ConstView rows) {
  check.real(name, rows, 2).real("bias", op.bias, 2);
  const Index n = op.bias.dim(1);
  SY_ASSERT(op.first >= 0 && op.first + n <= rows.dim(1), "{}: columns {} + {} of {}", op.name, op.first, n,
            rows.dim(1));
  check.same("bias", op.bias, op.bias.shape(), rows).optional("row_scale", op.row_scale, {rows.dim(0)});
  check_groups(check, op.groups, op.bias.dim(0), rows.dim(0));
}

}  // namespace

void check(const GroupedBiasForward& op) {
  check_grouped(Operands(op.name), op, "y", op.y);
}

void check(const GroupedBiasBackward& op) {
  const Operands check(op.name);
  check_grouped(check, op, "dy", op.dy);
  check.is("dbias", op.dbias, op.bias.shape()).optional("drow_scale", op.drow_scale, {op.dy.dim(0)});
}

}  // namespace sy::ops
