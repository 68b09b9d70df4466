#include "kernels/ops/dispatch.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const DispatchLayout& op) {
  const Operands check(op.name);
  check.dims("experts", op.experts, 2, DType::i32).dims("tokens_per_expert", op.tokens_per_expert, 1, DType::i32);
  const ExpertPartition& partition = op.partition;
  const Index t = op.experts.dim(0), e = op.tokens_per_expert.dim(0),
              most = partition.max_ep_ranks(op.experts.dim(1)) * partition.etp;
  SY_ASSERT(partition.ep > 0 && partition.etp > 0 && e % partition.ep == 0, "{}: {} experts, ep = {}, etp = {}",
            op.name, e, partition.ep, partition.etp);
  SY_ASSERT(static_cast<bool>(op.tokens) == static_cast<bool>(op.row_id_map), "{}: tokens or row_id_map alone",
            op.name);
  SY_ASSERT(t == 0 || partition.first_expert == 0 ||
                (partition.first_expert > 0 && !op.dispatch_mask && !partition.logical_to_physical),
            "{}: experts from {} on", op.name, partition.first_expert);
  check.optional("dispatch_mask", op.dispatch_mask, op.experts.shape(), DType::i32)
      .is("physical_experts", op.physical_experts, op.experts.shape(), DType::i32)
      .optional("tokens", op.tokens, {t * most}, DType::i32)
      .optional("row_id_map", op.row_id_map, {t, most}, DType::i32)
      .is("counts", op.counts, {partition.ranks(), 1 + e / partition.ep}, DType::i32)
      .optional("logical_to_physical", partition.logical_to_physical, op.tokens_per_expert.shape(), DType::i32);
  SY_ASSERT(t * most <= INT32_MAX, "{}: {} rows, numbered with 31 bits", op.name, t * most);
}

void check(const BuildPermutation& op) {
  const Operands check(op.name);
  check.dims("physical_experts", op.physical_experts, 2, DType::i32)
      .dims("tokens", op.tokens, 1, DType::i32)
      .dims("offsets", op.offsets, 1, DType::i32)
      .optional("assignments", op.assignments, op.tokens.shape(), DType::i32)
      .is("row_id_map", op.row_id_map, op.physical_experts.shape(), DType::i32)
      .optional("weights", op.weights, op.physical_experts.shape())
      .optional("row_weights", op.row_weights, op.tokens.shape());
  SY_ASSERT(static_cast<bool>(op.weights) == static_cast<bool>(op.row_weights), "{}: weights or row_weights alone",
            op.name);
  SY_ASSERT(op.first_expert >= 0 && op.offsets.dim(0) > 0 && op.tokens.dim(0) <= op.physical_experts.elements() &&
                op.physical_experts.elements() <= INT32_MAX,
            "{}: {} rows for {} physical experts from {} on, of {} assignments", op.name, op.tokens.dim(0),
            op.offsets.dim(0) - 1, op.first_expert, op.physical_experts.elements());
}

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
