#include "src/model/linear.h"

namespace sy {

Linear::Linear(Param weight, Index in, Param bias) : bias_(bias) {
  const Shape shape{weight.weight.elements() / in, in};
  weight_.weight = weight.weight.reshape(shape);
  if (weight.grad) weight_.grad = weight.grad.reshape(shape);
  if (!bias_) return;
  bias_.weight = bias_.weight.reshape({shape[0]});
  if (bias_.grad) bias_.grad = bias_.grad.reshape({shape[0]});
}

void Linear::forward(const Context& ctx, ConstView x, View y) const {
  ctx.backend.gemm({.transpose_b = true}, x, weight_.weight, y);
  if (bias_) ctx.backend.bias_forward(bias_.weight, y);
}

void Linear::forward_sum(const Context& ctx, ConstView x, Output to) const {
  if (ctx.mesh.tp->size() == 1) {
    ctx.backend.gemm({.transpose_b = true, .accumulate = to.add}, x, weight_.weight, to.y);
  } else {
    const Arena::Scope scope(ctx.scratch);
    const View partial = ctx.temp({x.dim(0), to.y.dim(1)});
    ctx.backend.gemm({.transpose_b = true}, x, weight_.weight, partial);
    scatter_tokens(ctx, partial, to);
  }
  if (bias_) ctx.backend.bias_forward(bias_.weight, to.y);
}

void Linear::backward_input(const Context& ctx, ConstView dy, View dx, bool accumulate) const {
  ctx.backend.gemm({.accumulate = accumulate}, dy, weight_.weight, dx);
}

void Linear::backward_input_sum(const Context& ctx, ConstView dy, View dx) const {
  if (ctx.mesh.tp->size() == 1) return backward_input(ctx, dy, dx);
  const Arena::Scope scope(ctx.scratch);
  const View partial = ctx.temp({dy.dim(0), dx.dim(1)});
  backward_input(ctx, dy, partial);
  ctx.mesh.tp->reduce_scatter(partial, dx);
}

void Linear::backward_weight(const Context& ctx, ConstView dy, ConstView x) const {
  ctx.backend.gemm({.transpose_a = true, .accumulate = true}, dy, x, weight_.grad);
}

void Linear::backward_bias(const Context& ctx, ConstView dy) const {
  if (bias_) ctx.backend.bias_backward(dy, bias_.grad);
}

}  // namespace sy
