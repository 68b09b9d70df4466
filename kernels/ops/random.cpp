#include "kernels/ops/random.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const Draw& op) {
  Operands(op.name).dims("x", op.x, 2).is("index", op.index, {op.x.dim(0)}, DType::i64);
}

void check(const Jitter& op) {
  Operands(op.name)
      .real("x", op.x, 2)
      .is("index", op.index, {op.x.dim(0)}, DType::i64)
      .same("y", op.y, op.x.shape(), op.x);
}

void check(const NoisyGatingForward& op) {
  Operands(op.name)
      .dims("x", op.x, 2)
      .is("index", op.index, {op.x.dim(0)}, DType::i64)
      .is("stddev", op.stddev, op.x.shape());
}

void check(const NoisyGatingBackward& op) {
  Operands(op.name)
      .real("dx", op.dx, 2)
      .is("index", op.index, {op.dx.dim(0)}, DType::i64)
      .is("stddev", op.stddev, op.dx.shape())
      .same("dstddev", op.dstddev, op.dx.shape(), op.dx);
}

}  // namespace sy::ops
