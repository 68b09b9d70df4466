#include "kernels/ops/token_message.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const PackTokens& op) {
  const Operands check(op.name);
  check.dims("physical_experts", op.physical_experts, 2, DType::i32)
      .real("x", op.x, 2)
      .dims("index", op.index, 1, DType::i32);
  const TokenRow row{op.physical_experts.dim(1), op.x.dim(1), op.x.dtype()};
  check.is("physical_experts", op.physical_experts, {op.x.dim(0), row.k}, DType::i32)
      .is("weights", op.weights, op.physical_experts.shape())
      .same("y", op.y, {op.index.dim(0), row.columns()}, op.x);
}

void check(const UnpackTokens& op) {
  const Operands check(op.name);
  check.real("x", op.x, 2).dims("physical_experts", op.physical_experts, 2, DType::i32);
  check.is("physical_experts", op.physical_experts, {op.x.dim(0), op.physical_experts.dim(1)}, DType::i32)
      .optional("weights", op.weights, op.physical_experts.shape());
  const TokenRow row{op.physical_experts.dim(1), 0, op.x.dtype()};
  SY_ASSERT(op.x.dim(1) >= row.columns(), "{}: rows of {} columns for {} experts", op.name, op.x.dim(1), row.k);
}

}  // namespace sy::ops
