#include "kernels/ops/qk_norm.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

namespace {

// Checks the operands that HeadQkNormForward and HeadQkNormBackward share.
template <class Operation>
void check_head_qk_norm(const Operands& check, const Operation& op) {
  check.real("x", op.x, 3);
  const Index t = op.x.dim(0), heads = op.desc.q_heads + op.desc.k_heads, hd = op.x.dim(2);
  SY_ASSERT(heads <= op.x.dim(1), "head_qk_norm: {} heads of x {}", heads, op.x.shape().str());
  SY_ASSERT(op.desc.kind != NormKind::none, "head_qk_norm: no norm to compute");
  check.same("weight", op.weight, {op.desc.weights(), hd}, op.x).is("inverse", op.inverse, {t, heads});
  if (!op.table) return;
  check.dims("table", op.table, 3).is("positions", op.positions, {t}, DType::i32);
  SY_ASSERT(op.table.dim(2) == 2 && 2 * op.table.dim(1) <= hd, "head_qk_norm: x {} by table {}", op.x.shape().str(),
            op.table.shape().str());
}

// x: [T, row]; sums: [T, 2]
void check_projection_qk_norm(const Operands& check, const ProjectionQkNorm& desc, ConstView x, ConstView sums) {
  check.real("x", x, 2).is("sums", sums, {x.dim(0), 2});
  SY_ASSERT(desc.queries > 0 && desc.keys > 0 && desc.queries + desc.keys <= x.dim(1),
            "projection_qk_norm: {} queries and {} keys of x {}", desc.queries, desc.keys, x.shape().str());
  SY_ASSERT(desc.all_queries >= desc.queries && desc.all_keys >= desc.keys,
            "projection_qk_norm: {} of all {} queries, {} of all {} keys", desc.queries, desc.all_queries, desc.keys,
            desc.all_keys);
}

}  // namespace

void check(const HeadQkNormForward& op) {
  const Operands check(op.name);
  check_head_qk_norm(check, op);
  check.same("y", op.y, op.x.shape(), op.x);
}

void check(const HeadQkNormBackward& op) {
  const Operands check(op.name);
  check_head_qk_norm(check, op);
  check.same("dy", op.dy, op.x.shape(), op.x)
      .same("dx", op.dx, op.x.shape(), op.x)
      .is("dweight", op.dweight, {op.desc.weights(), op.x.dim(2)});
}

void check(const ProjectionQkNormSums& op) {
  const Operands check(op.name);
  check_projection_qk_norm(check, op.desc, op.x, op.sums);
  check.same("y", op.y, op.x.shape(), op.x);
}

Cost ProjectionQkNormSums::cost() const {
  const auto normed = static_cast<double>(desc.queries + desc.keys);
  return Cost{.bytes_read = 2 * static_cast<double>(x.size_bytes()) * normed / static_cast<double>(x.dim(1))}.writes(
      sums);
}

void check(const ProjectionQkNormForward& op) {
  const Operands check(op.name);
  check_projection_qk_norm(check, op.desc, op.x, op.squares);
  check.same("weight", op.weight, {op.desc.queries + op.desc.keys}, op.x).same("y", op.y, op.x.shape(), op.x);
}

void check(const ProjectionQkNormBackward& op) {
  const Operands check(op.name);
  check_projection_qk_norm(check, op.desc, op.x, op.squares);
  const Shape normed{op.desc.queries + op.desc.keys};
  check.is("products", op.products, {op.x.dim(0), 2})
      .same("weight", op.weight, normed, op.x)
      .same("dy", op.dy, op.x.shape(), op.x)
      .same("dx", op.dx, op.x.shape(), op.x)
      .is("dweight", op.dweight, normed);
}

}  // namespace sy::ops
