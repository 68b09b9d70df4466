#include "kernels/ops/grouped_gemm.h"

#include <algorithm>

#include "kernels/device.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

void check_groups(const Operands& check, const GroupOffsets& groups, Index experts, Index rows) {
  check.is("offsets", groups.offsets, {experts + 1}, DType::i32);
  SY_ASSERT(groups.host && groups.host[0] == 0 && groups.host[experts] == rows, "{} rows, {} of experts", rows,
            groups.host ? groups.host[experts] : 0);
}

void check_gathered_rows(const Operands& check, const char* name, const GatheredRows& x, Index rows, Index width,
                         ConstView like) {
  check.real(name, x.values, 2).same(name, x.values, x.values.shape(), like);
  const Index columns = x.values.dim(1);
  SY_ASSERT(
      x.index ? x.first_column >= 0 && x.first_column + width <= columns : x.first_column == 0 && width == columns,
      "{}: {} columns of {} from {} on", name, width, columns, x.first_column);
  SY_ASSERT(x.rows() == rows, "{} rows of {}, not {}", x.rows(), name, rows);
  check.optional("index", x.index, {rows}, DType::i32);
}

void check_gather(std::string_view operation, const Device& device, const char* name, const GatheredRows& x,
                  std::initializer_list<Index> dims) {
  SY_ASSERT(!x.index || device.supports_gathered_rows(x.values.dtype(), dims),
            "{}: {}: {} does not support gathered rows of this type and these sizes", operation, name, device.name());
}

namespace {

double number(Index x) {
  return static_cast<double>(x);
}

// Size of a grouped GEMM: the least of the rows of an expert, if all have as many, and of its
// matrix dimensions.
Index min_dimension(Index rows, ConstView matrices) {
  return std::min({ceil_div(rows, matrices.dim(0)), matrices.dim(1), matrices.dim(2)});
}

}  // namespace

void check(const GroupedGemm& op) {
  const Operands check(op.name);
  const ConstView w = op.w.values;
  check.real("w", w, 3);
  const Index rows = op.x.rows(), experts = w.dim(0), n = w.dim(1), q = w.dim(2);
  check_gathered_rows(check, "x", op.x, rows, q, w);
  check.same("y", op.y, {rows, n}, w);
  check_groups(check, op.groups, experts, rows);
}

Cost GroupedGemm::cost() const {
  return Cost{.flops = 2 * number(y.elements()) * number(w.values.dim(2)), .size = min_dimension(y.dim(0), w.values)}
      .reads(x.values, x.index, w.read(GemmPass::fprop), w.packed(GemmPass::fprop).scales)
      .writes(y);
}

void run(Device& device, const GroupedGemm& op) {
  check(op);
  check_gather(op.name, device, "x", op.x, {op.w.values.dim(1), op.w.values.dim(2)});
  check_packed(Operands(op.name), device, op.w, GemmPass::fprop);
  if (op.y.elements() == 0) return;
  if (op.w.values.dim(2) == 0) return fill_zeros(device, op.y);
  device.execute(op);
}

void check(const GroupedGemmDgrad& op) {
  const Operands check(op.name);
  const ConstView w = op.w.values;
  check.real("w", w, 3);
  const Index rows = op.dy.rows(), experts = w.dim(0), n = w.dim(1), q = w.dim(2);
  check_gathered_rows(check, "dy", op.dy, rows, n, w);
  check.same("dx", op.dx, {rows, q}, w);
  check_groups(check, op.groups, experts, rows);
}

Cost GroupedGemmDgrad::cost() const {
  return Cost{.flops = 2 * number(dx.elements()) * number(w.values.dim(1)), .size = min_dimension(dx.dim(0), w.values)}
      .reads(dy.values, dy.index, w.read(GemmPass::dgrad), w.packed(GemmPass::dgrad).scales)
      .writes(dx);
}

void run(Device& device, const GroupedGemmDgrad& op) {
  check(op);
  check_gather(op.name, device, "dy", op.dy, {op.w.values.dim(1), op.w.values.dim(2)});
  check_packed(Operands(op.name), device, op.w, GemmPass::dgrad);
  if (op.dx.elements() == 0) return;
  if (op.w.values.dim(1) == 0) return fill_zeros(device, op.dx);
  device.execute(op);
}

void check(const GroupedGemmWgrad& op) {
  const Operands check = Operands(op.name).dims("dw", op.dw, 3);
  const Index rows = op.x.rows(), experts = op.dw.dim(0), n = op.dw.dim(1), q = op.dw.dim(2);
  check_gathered_rows(check, "dy", op.dy, rows, n, op.x.values);
  check_gathered_rows(check, "x", op.x, rows, q, op.x.values);
  check_groups(check, op.groups, experts, rows);
}

Cost GroupedGemmWgrad::cost() const {
  Cost cost{.flops = 2 * number(x.rows()) * number(dw.dim(1)) * number(dw.dim(2)), .size = min_dimension(x.rows(), dw)};
  cost.reads(dy.values, dy.index, x.values, x.index).writes(dw);
  return accumulate ? cost.reads(dw) : cost;
}

void run(Device& device, const GroupedGemmWgrad& op) {
  check(op);
  check_gather(op.name, device, "dy", op.dy, {op.dw.dim(1), op.dw.dim(2)});
  check_gather(op.name, device, "x", op.x, {op.dw.dim(1), op.dw.dim(2)});
  if (op.dw.elements() == 0) return;
  if (op.x.rows() > 0) return device.execute(op);
  if (!op.accumulate) fill_zeros(device, op.dw);
}

}  // namespace sy::ops
