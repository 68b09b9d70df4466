// Experts' products as numbers and addresses, and the choice of their kernel. Runs on the host.
#include "kernels/cuda/expert_products.h"

namespace sy::cuda {
namespace {

// Rows of the experts, which the group offsets divide.
ExpertOperand rows_of(const GatheredRows& x) {
  const std::byte* values = x.values.bytes();
  if (values) values += x.first_column * size_of(x.values.dtype());
  return {values, x.index ? reinterpret_cast<const std::int32_t*>(x.index.bytes()) : nullptr, x.values.dim(1)};
}
// Matrices of the experts: [E, rows, width].
ExpertOperand matrices_of(ConstView w) {
  return {w.bytes(), nullptr, w.dim(2), w.dim(1)};
}
const std::int32_t* offsets_of(const GroupOffsets& groups) {
  return reinterpret_cast<const std::int32_t*>(groups.offsets.bytes());
}

ExpertProduct by_weights(ExpertPass pass, const GatheredRows& x, ConstView w, const GroupOffsets& groups, ConstView y) {
  return {.pass = pass,
          .type = w.dtype(),
          .type_of_c = y.dtype(),
          .total_rows = x.rows(),
          .depth = w.dim(pass == ExpertPass::fprop ? 2 : 1),
          .a = rows_of(x),
          .b = matrices_of(w),
          .c = rows_of(y),
          .outputs = {.experts = w.dim(0), .offsets = offsets_of(groups), .columns = y.dim(1)}};
}

}  // namespace

ExpertProduct expert_product(const ops::GroupedGemm& op) {
  return by_weights(ExpertPass::fprop, op.x, op.w.values, op.groups, op.y);
}

ExpertProduct expert_product(const ops::GroupedGemmDgrad& op) {
  return by_weights(ExpertPass::dgrad, op.dy, op.w.values, op.groups, op.dx);
}

ExpertProduct expert_product(const ops::GroupedGemmWgrad& op) {
  return {.pass = ExpertPass::wgrad,
          .accumulate = op.accumulate,
          .type = op.x.values.dtype(),
          .type_of_c = op.dw.dtype(),
          .total_rows = op.x.rows(),
          .a = rows_of(op.dy),
          .b = rows_of(op.x),
          .c = matrices_of(op.dw),
          .outputs = {.experts = op.dw.dim(0),
                      .offsets = offsets_of(op.groups),
                      .rows = op.dw.dim(1),
                      .columns = op.dw.dim(2),
                      .skips_empty = op.accumulate}};
}

bool is_served(const ExpertProduct& product) {
  if (product.type != DType::bf16) return false;
  if (product.type_of_c != (product.pass == ExpertPass::wgrad ? DType::f32 : DType::bf16)) return false;
  for (const ExpertOperand& x : {product.a, product.b, product.c})
    if (reinterpret_cast<std::uintptr_t>(x.values) % 16 != 0 || x.width % expert_row_multiple != 0) return false;
  return true;
}

}  // namespace sy::cuda
