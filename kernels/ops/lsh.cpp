#include "kernels/ops/lsh.h"

#include <algorithm>
#include <numeric>

#include "kernels/ops/operands.h"

namespace sy::ops {
namespace {

// Checks the operands that both passes of attention read.
void check_attention(const Operands& check, ConstHeads x, ConstHeads v, ConstView order, ConstView lengths,
                     const LshDesc& desc) {
  const Index B = x.sequences, S = x.positions, H = x.heads;
  SY_ASSERT(desc.chunk > 0 && desc.before >= 0 && desc.after >= 0, "{}: chunks of {}, {} before and {} after",
            check.operation(), desc.chunk, desc.before, desc.after);
  check.heads("x", x, {B, S, H, x.width}, x)
      .heads("v", v, {B, S, H, v.width}, x)
      .optional("lengths", lengths, {B}, DType::i32);
  if (!order) return;
  check.dims("order", order, 4, DType::i32);
  const Index P = order.dim(3);
  check.is("order", order, {B, H, order.dim(2), P}, DType::i32);
  SY_ASSERT(P >= S && P % desc.chunk == 0 && order.dim(2) > 0, "{}: order {} of {} tokens in chunks of {}",
            check.operation(), order.shape().str(), S, desc.chunk);
}

// Returns the number of pairs of a query and a key in all heads, before any mask.
double pairs(ConstHeads x, ConstView order, const LshDesc& desc) {
  const Index rounds = order ? order.dim(2) : 1;
  const Index seen = std::min(desc.chunk * (1 + desc.before + desc.after), x.positions);
  return static_cast<double>(x.sequences * x.positions * x.heads) * static_cast<double>(rounds * seen);
}

}  // namespace

void check(const LshSort& op) {
  const Operands check(op.name);
  const Index B = op.x.sequences, H = op.x.heads;
  check.dims("order", op.order, 4, DType::i32);
  const Index rounds = op.order.dim(2), sum = std::accumulate(op.factors.begin(), op.factors.end(), Index{0});
  SY_ASSERT(std::all_of(op.factors.begin(), op.factors.end(), [](Index f) { return f > 0 && f % 2 == 0; }) && sum > 0,
            "{}: a factor of the buckets is odd", op.name);
  SY_ASSERT(op.order.dim(3) >= op.x.positions, "{}: an order {} of {} tokens", op.name, op.order.shape().str(),
            op.x.positions);
  check.heads("x", op.x, op.x.shape(), op.x)
      .is("rotations", op.rotations, {H, op.x.width, rounds, sum / 2})
      .optional("lengths", op.lengths, {B}, DType::i32)
      .is("order", op.order, {B, H, rounds, op.order.dim(3)}, DType::i32);
}

Cost LshSort::cost() const {
  const double products = static_cast<double>(x.elements()) * static_cast<double>(rotations.dim(2) * rotations.dim(3));
  return Cost{.flops = 2 * products, .size = x.width}.reads(x, rotations, lengths).writes(order);
}

void check(const LshAttentionForward& op) {
  const Operands check(op.name);
  check_attention(check, op.x, op.v, op.order, op.lengths, op.desc);
  const Index B = op.x.sequences, S = op.x.positions, H = op.x.heads;
  check.is("out", op.out, {B, S, H, op.v.width}, op.x.dtype).is("lse", op.lse, {B, H, S});
}

Cost LshAttentionForward::cost() const {
  return Cost{.flops = 2 * static_cast<double>(x.width + v.width) * pairs(x, order, desc), .size = x.width}
      .reads(x, v, order, lengths)
      .writes(out, lse);
}

void check(const LshAttentionBackward& op) {
  const Operands check(op.name);
  check_attention(check, op.x, op.v, op.order, op.lengths, op.desc);
  const Index B = op.x.sequences, S = op.x.positions, H = op.x.heads;
  const Shape of_values{B, S, H, op.v.width};
  check.is("dout", op.dout, of_values, op.x.dtype)
      .is("out", op.out, of_values, op.x.dtype)
      .is("lse", op.lse, {B, H, S})
      .heads("dx", op.dx, op.x.shape(), op.x)
      .heads("dv", op.dv, of_values, op.x);
}

Cost LshAttentionBackward::cost() const {
  return Cost{.flops = 2 * static_cast<double>(3 * x.width + 2 * v.width) * pairs(x, order, desc), .size = x.width}
      .reads(dout, x, v, out, lse, order, lengths)
      .writes(dx, dv);
}

}  // namespace sy::ops
