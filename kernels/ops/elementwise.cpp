#include "kernels/ops/elementwise.h"

#include "kernels/cost.h"
#include "kernels/device.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const Fill& op) {
  Operands(op.name).is("x", op.x, op.x.shape(), op.x.dtype());
  SY_ASSERT(op.x.dtype() == DType::f32 || op.value == 0, "fill: {} with {}", info(op.x.dtype()).name, op.value);
}

Cost cost(const Fill& op) {
  return Cost().writes(op.x);
}

void run(Device& device, const Fill& op) {
  check(op);
  if (op.x.elements() > 0) device.execute(op);
}

void check(const Copy& op) {
  SY_ASSERT(op.x.size_bytes() == op.y.size_bytes(), "copy: {} {} to {} {}", info(op.x.dtype()).name, op.x.shape().str(),
            info(op.y.dtype()).name, op.y.shape().str());
  Operands(op.name).is("x", op.x, op.x.shape(), op.x.dtype()).is("y", op.y, op.y.shape(), op.y.dtype());
}

Cost cost(const Copy& op) {
  return Cost().reads(op.x).writes(op.y);
}

void run(Device& device, const Copy& op) {
  check(op);
  if (op.x.elements() > 0) device.execute(op);
}

void check(const Convert& op) {
  const int dims = op.x.shape().size();
  Operands(op.name).real("x", op.x, dims).real("y", op.y, dims).is("y", op.y, op.x.shape(), op.y.dtype());
}

Cost cost(const Convert& op) {
  return Cost().reads(op.x).writes(op.y);
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

Cost cost(const Add& op) {
  return Cost().reads(op.x).updates(op.y);
}

void run(Device& device, const Add& op) {
  check(op);
  if (op.y.elements() > 0) device.execute(op);
}

void check(const Scale& op) {
  Operands(op.name).real("x", op.x, op.x.shape().size());
}

Cost cost(const Scale& op) {
  return Cost().updates(op.x);
}

void run(Device& device, const Scale& op) {
  check(op);
  if (op.x.elements() > 0) device.execute(op);
}

void check(const SumSquares& op) {
  Operands(op.name).is("x", op.x, op.x.shape()).is("out", op.out, {1}, DType::f64);
}

Cost cost(const SumSquares& op) {
  return Cost().reads(op.x);
}

void run(Device& device, const SumSquares& op) {
  check(op);
  if (op.x.elements() > 0) device.execute(op);
}

}  // namespace sy::ops
