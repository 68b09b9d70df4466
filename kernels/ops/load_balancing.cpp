#include "kernels/ops/load_balancing.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

void check(const LoadBalancingLoss& op) {
  const Operands check(op.name);
  check.dims("counts", op.counts, 3, DType::i32).dims("scope_counts", op.scope_counts, 4, DType::i32);
  const Index l = op.counts.dim(0), g = op.counts.dim(1), e = op.counts.dim(2), p = op.scope_counts.dim(0), n = p * g;
  SY_ASSERT(op.desc.per_scope > 0 && n > 0 && n % op.desc.per_scope == 0, "{}: {} segments in scopes of {}", op.name, n,
            op.desc.per_scope);
  check.is("scope_counts", op.scope_counts, {p, l, g, e}, DType::i32)
      .is("probability", op.probability, {l, g, e})
      .is("tokens_per_expert", op.tokens_per_expert, {l, e}, DType::i32)
      .is("z_squared", op.z_squared, {l}, DType::f64)
      .is("dprobability", op.dprobability, {l, g, e})
      .optional("sums", op.sums, {l, RouterSums{e}.size()}, DType::f64);
}

}  // namespace sy::ops
