#include "kernels/ops/capacity.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const ApplyCapacity& op) {
  const Operands check(op.name);
  check.dims("experts", op.experts, 2, DType::i32);
  check.is("weights", op.weights, op.experts.shape())
      .is("dispatch_mask", op.dispatch_mask, op.experts.shape(), DType::i32)
      .segments(op.experts.dim(0), op.segments);
  SY_ASSERT(op.desc.capacity >= 0 && op.num_experts >= op.experts.dim(1), "{}: {} of each of {} experts, {} chosen",
            op.name, op.desc.capacity, op.num_experts, op.experts.dim(1));
}

}  // namespace sy::ops
