#include "kernels/ops/heads.h"

#include <algorithm>
#include <utility>

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const BroadcastHeads& op) {
  const ConstHeads &x = op.x, y = op.y;
  Operands(op.name)
      .heads("x", x, {y.sequences, y.positions, x.heads == 1 ? 1 : y.heads, y.width}, y)
      .heads("y", y, y.shape(), x);
}

void check(const ReduceHeads& op) {
  const ConstHeads &x = op.x, y = op.y;
  Operands(op.name).heads("x", x, x.shape(), y).heads("y", y, {x.sequences, x.positions, 1, x.width}, x);
}

void check(const BatchedHeadGemm& op) {
  const ConstHeads &x = op.x, y = op.y;
  const Operands check = Operands(op.name).real("w", op.w, 3);
  const Index n = op.w.dim(1), q = op.w.dim(2);
  const auto [in, out] = op.pass == GemmPass::fprop ? std::pair{q, n} : std::pair{n, q};
  check.heads("x", x, {x.sequences, x.positions, op.w.dim(0), in}, y)
      .heads("y", y, {x.sequences, x.positions, op.w.dim(0), out}, x);
  SY_ASSERT(op.w.dtype() == x.dtype && in > 0, "{}: w is {} {}", op.name, info(op.w.dtype()).name, op.w.shape().str());
  for (const ConstHeads& heads : {x, y})
    SY_ASSERT(heads.sequences <= 1 || heads.sequence_stride == heads.positions * heads.token_stride,
              "{}: gaps between the sequences of {}", op.name, heads.shape().str());
}

Cost BatchedHeadGemm::cost() const {
  const Index tokens = x.sequences * x.positions;
  return Cost{.flops = 2 * static_cast<double>(tokens) * static_cast<double>(w.elements()),
              .size = std::min({tokens, w.dim(1), w.dim(2)})}
      .reads(x, w)
      .writes(y);
}

}  // namespace sy::ops
