#include "kernels/ops/route.h"

#include "kernels/ops/operands.h"

namespace sy::ops {

namespace {

void check_route(std::string_view operation, const RouteDesc& desc, Index experts) {
  SY_ASSERT(desc.top_k >= 1 && desc.top_k <= experts, "{}: {} of {} experts", operation, desc.top_k, experts);
  SY_ASSERT(desc.groups >= 1 && experts % desc.groups == 0 && desc.topk_groups >= 1 &&
                desc.topk_groups <= desc.groups && desc.top_k <= experts / desc.groups * desc.topk_groups,
            "{}: {} of {} experts in {} of {} groups", operation, desc.top_k, experts, desc.topk_groups, desc.groups);
}

}  // namespace

void check(const RouteForward& op) {
  const Operands check = Operands(op.name).dims("logits", op.logits, 2).dims("counts", op.counts, 2, DType::i32);
  const Index t = op.logits.dim(0), e = op.logits.dim(1), segments = op.counts.dim(0);
  check_route(op.name, op.desc, e);
  check.segments(t, segments)
      .optional("bias", op.bias, {e})
      .optional("noise", op.noise, {t, e})
      .optional("token_mask", op.token_mask, {t}, DType::i32)
      .is("experts", op.experts, {t, op.desc.top_k}, DType::i32)
      .is("weights", op.weights, {t, op.desc.top_k})
      .is("counts", op.counts, {segments, e}, DType::i32)
      .is("probability", op.probability, {segments, e})
      .is("z_squared", op.z_squared, {1}, DType::f64);
}

void check(const RouteBackward& op) {
  const Operands check = Operands(op.name).dims("logits", op.logits, 2).dims("dprobability", op.dprobability, 2);
  const Index t = op.logits.dim(0), e = op.logits.dim(1), segments = op.dprobability.dim(0);
  const Shape chosen = {t, op.desc.top_k};
  check_route(op.name, op.desc, e);
  check.segments(t, segments)
      .is("experts", op.experts, chosen, DType::i32)
      .is("weights", op.weights, chosen)
      .is("dweights", op.dweights, chosen)
      .is("dprobability", op.dprobability, {segments, e})
      .real("dlogits", op.dlogits, 2)
      .same("dlogits", op.dlogits, {t, e}, op.dlogits);
}

}  // namespace sy::ops
