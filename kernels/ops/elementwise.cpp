#include "kernels/ops/elementwise.h"

#include "kernels/device.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const Fill& op) {
  Operands(op.name).is("x", op.x, op.x.shape(), op.x.dtype());
  SY_ASSERT(op.x.dtype() == DType::f32 || op.value == 0, "fill: {} with {}", info(op.x.dtype()).name, op.value);
}

void fill_zeros(Device& device, View x) {
  if (x) run(device, Fill{.x = x, .value = 0});
}

void check(const Copy& op) {
  SY_ASSERT(op.x.size_bytes() == op.y.size_bytes(), "copy: {} {} to {} {}", info(op.x.dtype()).name, op.x.shape().str(),
            info(op.y.dtype()).name, op.y.shape().str());
  Operands(op.name).is("x", op.x, op.x.shape(), op.x.dtype()).is("y", op.y, op.y.shape(), op.y.dtype());
}

void check(const Convert& op) {
  const int dims = op.x.shape().size();
  Operands(op.name).real("x", op.x, dims).real("y", op.y, dims).is("y", op.y, op.x.shape(), op.y.dtype());
}

void run(Device& device, const Convert& op) {
  check(op);
  if (op.x.dtype() == op.y.dtype()) return run(device, Copy{.x = op.x, .y = op.y});
  if (op.y.elements() > 0) device.execute(op);
}

void check(const Add& op) {
  Operands(op.name)
      .real("x", op.x, op.y.shape().size())
      .same("x", op.x, op.y.shape(), op.y)
      .same("y", op.y, op.y.shape(), op.x);
}

void check(const Scale& op) {
  Operands(op.name).real("x", op.x, op.x.shape().size());
}

void check(const SumSquares& op) {
  Operands(op.name).is("x", op.x, op.x.shape()).is("out", op.out, {1}, DType::f64);
}

void check(const BitSum& op) {
  Operands(op.name).real("x", op.x, op.x.shape().size()).is("out", op.out, {1}, DType::i32);
}

}  // namespace sy::ops
