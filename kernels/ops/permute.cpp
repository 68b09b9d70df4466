#include "kernels/ops/permute.h"

#include "kernels/device.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const Permute& op) {
  const Operands check(op.name);
  if (op.x.dtype() != DType::i32) check.real("x", op.x, 2);
  check.dims("x", op.x, 2, op.x.dtype())
      .dims("y", op.y, 2, op.x.dtype())
      .is("index", op.index, {op.y.dim(0)}, DType::i32);
  SY_ASSERT(op.first_column >= 0 && op.first_column + op.y.dim(1) <= op.x.dim(1), "{}: {} of {} columns from {} on",
            op.name, op.y.dim(1), op.x.dim(1), op.first_column);
}

void run(Device& device, const Permute& op) {
  check(op);
  if (op.y.elements() == 0) return;
  // Elements are copied as f32, whatever their type.
  const auto as_f32 = [](auto v) {
    return v.dtype() == DType::i32 ? decltype(v){v.bytes(), v.shape(), DType::f32} : v;
  };
  device.execute(Permute{.x = as_f32(op.x), .index = op.index, .first_column = op.first_column, .y = as_f32(op.y)});
}

void check(const Unpermute& op) {
  const Operands check = Operands(op.name).real("x", op.x, 2).dims("row_id_map", op.row_id_map, 2, DType::i32);
  check.same("y", op.y, {op.row_id_map.dim(0), op.x.dim(1)}, op.x)
      .optional("addend", op.addend, op.y.shape(), op.x.dtype());
}

}  // namespace sy::ops
