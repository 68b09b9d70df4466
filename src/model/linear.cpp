#include "src/model/linear.h"

#include "kernels/ops/bias.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/ffn.h"
#include "kernels/ops/gemm.h"
#include "src/params/lora.h"

namespace sy {
namespace {

// Returns the number of inputs of a weight's linear map on this rank.
Index num_inputs(const ParamStore& store, const std::string& weight) {
  const ParamSpec& spec = store.spec(weight);
  const Shape& shape = store.box(weight).size;
  return shape.elements(shape.size() - (spec.matrix ? linear_dims(spec).inputs : 1));
}

}  // namespace

Linear::Linear(ParamStore& store, Param weight, Index in, Param bias)
    : weight_(store, weight, {weight.weight.elements() / in, in}), bias_(bias) {
  if (bias_) bias_ = bias_.reshape({outputs()});
}

Linear::Linear(ParamStore& store, const std::string& name, int fused)
    : Linear(store, store.get_fused(name + ".weight", fused), num_inputs(store, name + ".weight"),
             store.find(name + ".bias") ? store.get_fused(name + ".bias", fused) : Param{}) {}

void Linear::forward(const ExecutionContext& context, ConstView x, View y, bool accumulate) const {
  const Arena::Scope scope(context.scratch);
  const Weight w = weight_.sum(context);
  y = output_rows(y, x);
  run(context.device, ops::Gemm{.a = input_rows(x), .b = w, .transpose_b = true, .accumulate = accumulate, .c = y});
  if (!bias_) return;
  if (bias_.weight.dtype() == y.dtype()) return run(context.device, ops::BiasForward{.bias = bias_.weight, .y = y});
  const View bias = context.scratch.take(bias_.weight.shape(), y.dtype());
  run(context.device, ops::Convert{.x = bias_.weight, .y = bias});
  run(context.device, ops::BiasForward{.bias = bias, .y = y});
}

void Linear::forward_activated(const ExecutionContext& context, const FfnActivation& activation, ConstView x,
                               ConstView row_scale, View h, View y) const {
  const Arena::Scope scope(context.scratch);
  run(context.device, ops::FfnForward{.x = x,
                                      .w = weight_.sum(context),
                                      .bias = bias_.weight,
                                      .row_scale = row_scale,
                                      .activation = activation,
                                      .h = h,
                                      .y = y});
}

void Linear::backward_activated(const ExecutionContext& context, const FfnActivation& activation, ConstView dy,
                                ConstView h, ConstView row_scale, View dh, View drow_scale, View y) const {
  const Arena::Scope scope(context.scratch);
  run(context.device, ops::FfnBackward{.dout = dy,
                                       .w = weight_.sum(context),
                                       .h = h,
                                       .row_scale = row_scale,
                                       .activation = activation,
                                       .dh = dh,
                                       .drow_scale = drow_scale,
                                       .y = y});
}

void Linear::forward_sum(const ExecutionContext& context, ConstView x, Output to) const {
  const Arena::Scope scope(context.scratch);
  const Weight w = weight_.sum(context);
  x = input_rows(x);
  if (context.mesh.tp->size() == 1) {
    run(context.device, ops::Gemm{.a = x, .b = w, .addend = to.residual, .transpose_b = true, .c = to.y});
  } else {
    const View partial = context.temp({x.dim(0), to.y.dim(1)});
    run(context.device, ops::Gemm{.a = x, .b = w, .transpose_b = true, .c = partial});
    scatter_tokens(context, partial, to);
  }
  if (bias_) run(context.device, ops::BiasForward{.bias = bias_.weight, .y = to.y});
}

void Linear::backward_input(const ExecutionContext& context, ConstView dy, View dx, bool accumulate) const {
  const Arena::Scope scope(context.scratch);
  run(context.device,
      ops::Gemm{.a = output_rows(dy, dx), .b = weight_.sum(context), .accumulate = accumulate, .c = input_rows(dx)});
}

void Linear::backward_input_sum(const ExecutionContext& context, ConstView dy, View dx) const {
  sum_tokens(context, dx, [&](View partial) { backward_input(context, dy, partial); });
}

void Linear::backward_bias(const ExecutionContext& context, ConstView dy) const {
  if (bias_) run(context.device, ops::BiasBackward{.dy = dy, .dbias = bias_.grad});
}

void Linear::backward_weight(const ExecutionContext& context, ConstView dy, ConstView x) {
  weight_.backward(context, output_rows(dy, x), input_rows(x));
}

void Linear::backward_params(const ExecutionContext& context, ConstView dy, ConstView x) {
  backward_weight(context, dy, x);
  backward_bias(context, output_rows(dy, x));
}

View Linear::backward_sum(const ExecutionContext& context, ConstView dy, ConstView x) {
  backward_bias(context, dy);
  dy = gather_tokens(context, context.scratch, dy);
  const View dx = context.temp(x.shape());
  backward_input(context, dy, dx);
  backward_weight(context, dy, x);
  return dx;
}

}  // namespace sy
