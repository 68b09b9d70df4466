#include "kernels/ops/embedding.h"

#include "kernels/cost.h"
#include "kernels/device.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const EmbeddingForward& op) {
  Operands(op.name)
      .dims("ids", op.ids, 1, DType::i32)
      .real("table", op.table, 2)
      .same("y", op.y, {op.ids.dim(0), op.table.dim(1)}, op.table);
}

// It reads as much of the table as it writes of y.
Cost cost(const EmbeddingForward& op) {
  return Cost().reads(op.ids, op.y).writes(op.y);
}

void run(Device& device, const EmbeddingForward& op) {
  check(op);
  if (op.y.elements() > 0) device.execute(op);
}

void check(const EmbeddingBackward& op) {
  Operands(op.name)
      .dims("ids", op.ids, 1, DType::i32)
      .dims("dtable", op.dtable, 2)
      .real("dy", op.dy, 2)
      .is("dy", op.dy, {op.ids.dim(0), op.dtable.dim(1)}, op.dy.dtype());
}

// It updates one row of the table for each row of dy.
Cost cost(const EmbeddingBackward& op) {
  return Cost().reads(op.ids, op.dy).updates(op.dy);
}

void run(Device& device, const EmbeddingBackward& op) {
  check(op);
  if (op.dy.elements() > 0 && op.dtable.elements() > 0) device.execute(op);
}

}  // namespace sy::ops
