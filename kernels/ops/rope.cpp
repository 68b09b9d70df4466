#include "kernels/ops/rope.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const Rope& op) {
  const Operands check = Operands(op.name).real("x", op.x, 3).dims("table", op.table, 3);
  check.is("positions", op.positions, {op.x.dim(0)}, DType::i32)
      .is("table", op.table, {op.table.dim(0), op.table.dim(1), 2});
  SY_ASSERT(op.heads >= 0 && op.heads <= op.x.dim(1) && 2 * op.table.dim(1) <= op.x.dim(2),
            "rope: {} heads of x {} by table {}", op.heads, op.x.shape().str(), op.table.shape().str());
}

Cost Rope::cost() const {
  const double rotated =
      static_cast<double>(x.size_bytes()) * static_cast<double>(heads) / static_cast<double>(x.dim(1));
  return {.bytes_read = rotated, .bytes_written = rotated};
}

}  // namespace sy::ops
