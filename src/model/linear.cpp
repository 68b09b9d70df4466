#include "src/model/linear.h"

namespace sy {

Linear::Linear(ParamStore& store, Param weight, Index in, Param bias) : bias_(bias) {
  const Shape shape{weight.weight.elements() / in, in};
  weight_ = store.matrix(weight, shape);
  if (!bias_) return;
  bias_.weight = bias_.weight.reshape({shape[0]});
  if (bias_.grad) bias_.grad = bias_.grad.reshape({shape[0]});
}

void Linear::forward(const Device& device, ConstView x, View y) const {
  device.backend.gemm({.transpose_b = true}, x, weight_.weight, y);
  if (!bias_) return;
  if (bias_.weight.dtype() == y.dtype()) return device.backend.bias_forward(bias_.weight, y);
  const Arena::Scope scope(device.scratch);
  const View bias = device.scratch.take(bias_.weight.shape(), y.dtype());
  device.backend.convert(bias_.weight, bias);
  device.backend.bias_forward(bias, y);
}

void Linear::forward_activated(const Device& device, const FfnActivation& activation, ConstView x, ConstView row_scale,
                               View h, View y) const {
  device.backend.ffn_forward(activation, x, weight_.weight, bias_.weight, {}, row_scale, h, y);
}

void Linear::backward_activated(const Device& device, const FfnActivation& activation, ConstView dy, ConstView h,
                                ConstView row_scale, View dh, View drow_scale, View y) const {
  device.backend.ffn_backward(activation, dy, weight_.weight, {}, h, row_scale, dh, drow_scale, y);
}

void Linear::forward_sum(const Device& device, ConstView x, Output to) const {
  if (device.mesh.tp->size() == 1) {
    device.backend.gemm({.transpose_b = true}, x, weight_.weight, to.y, to.from);
  } else {
    const Arena::Scope scope(device.scratch);
    const View partial = device.temp({x.dim(0), to.y.dim(1)});
    device.backend.gemm({.transpose_b = true}, x, weight_.weight, partial);
    scatter_tokens(device, partial, to);
  }
  if (bias_) device.backend.bias_forward(bias_.weight, to.y);
}

void Linear::backward_input(const Device& device, ConstView dy, View dx, bool accumulate) const {
  device.backend.gemm({.accumulate = accumulate}, dy, weight_.weight, dx);
}

void Linear::backward_input_sum(const Device& device, ConstView dy, View dx) const {
  sum_tokens(device, dx, [&](View partial) { backward_input(device, dy, partial); });
}

void Linear::backward_weight(const Device& device, ConstView dy, ConstView x) const {
  device.backend.gemm({.transpose_a = true, .accumulate = weight_.adds()}, dy, x, weight_.grad);
}

void Linear::backward_bias(const Device& device, ConstView dy) const {
  if (bias_) device.backend.bias_backward(dy, bias_.grad);
}

}  // namespace sy
