#include "src/model/linear.h"

namespace sy {

Linear::Linear(ParamStore& store, Param weight, Index in, Param bias) : bias_(bias) {
  const Shape shape{weight.weight.elements() / in, in};
  weight_ = store.matrix(weight, shape);
  if (!bias_) return;
  bias_.weight = bias_.weight.reshape({shape[0]});
  if (bias_.grad) bias_.grad = bias_.grad.reshape({shape[0]});
}

void Linear::forward(const ExecutionContext& context, ConstView x, View y) const {
  context.backend.gemm({.transpose_b = true}, x, weight_.weight, y);
  if (!bias_) return;
  if (bias_.weight.dtype() == y.dtype()) return context.backend.bias_forward(bias_.weight, y);
  const Arena::Scope scope(context.scratch);
  const View bias = context.scratch.take(bias_.weight.shape(), y.dtype());
  context.backend.convert(bias_.weight, bias);
  context.backend.bias_forward(bias, y);
}

void Linear::forward_activated(const ExecutionContext& context, const FfnActivation& activation, ConstView x,
                               ConstView row_scale, View h, View y) const {
  context.backend.ffn_forward(activation, x, weight_.weight, bias_.weight, {}, row_scale, h, y);
}

void Linear::backward_activated(const ExecutionContext& context, const FfnActivation& activation, ConstView dy,
                                ConstView h, ConstView row_scale, View dh, View drow_scale, View y) const {
  context.backend.ffn_backward(activation, dy, weight_.weight, {}, h, row_scale, dh, drow_scale, y);
}

void Linear::forward_sum(const ExecutionContext& context, ConstView x, Output to) const {
  if (context.mesh.tp->size() == 1) {
    context.backend.gemm({.transpose_b = true}, x, weight_.weight, to.y, to.residual);
  } else {
    const Arena::Scope scope(context.scratch);
    const View partial = context.temp({x.dim(0), to.y.dim(1)});
    context.backend.gemm({.transpose_b = true}, x, weight_.weight, partial);
    scatter_tokens(context, partial, to);
  }
  if (bias_) context.backend.bias_forward(bias_.weight, to.y);
}

void Linear::backward_input(const ExecutionContext& context, ConstView dy, View dx, bool accumulate) const {
  context.backend.gemm({.accumulate = accumulate}, dy, weight_.weight, dx);
}

void Linear::backward_input_sum(const ExecutionContext& context, ConstView dy, View dx) const {
  sum_tokens(context, dx, [&](View partial) { backward_input(context, dy, partial); });
}

void Linear::backward_weight(const ExecutionContext& context, ConstView dy, ConstView x) {
  context.backend.gemm({.transpose_a = true, .accumulate = weight_.take_accumulate_flag()}, dy, x, weight_.grad);
}

void Linear::backward_bias(const ExecutionContext& context, ConstView dy) const {
  if (bias_) context.backend.bias_backward(dy, bias_.grad);
}

}  // namespace sy
