#include "kernels/ops/embedding.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const EmbeddingForward& op) {
  Operands(op.name)
      .dims("ids", op.ids, 1, DType::i32)
      .real("table", op.table, 2)
      .same("y", op.y, {op.ids.dim(0), op.table.dim(1)}, op.table);
}

void check(const EmbeddingBackward& op) {
  Operands(op.name)
      .dims("ids", op.ids, 1, DType::i32)
      .dims("dtable", op.dtable, 2)
      .real("dy", op.dy, 2)
      .is("dy", op.dy, {op.ids.dim(0), op.dtable.dim(1)}, op.dy.dtype());
}

}  // namespace sy::ops
