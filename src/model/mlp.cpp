#include "src/model/mlp.h"

namespace sy {

Mlp::Mlp(const MlpSpec& spec, Index d_model, ParamStore& store, const std::string& prefix)
    : activation_(spec.activation),
      width_(store.get(prefix + "up.weight").weight.dim(1)),
      up_(store, store.get(prefix + "up.weight"), d_model, store.find(prefix + "up.bias")),
      down_(store, store.get(prefix + "down.weight"), width_, store.find(prefix + "down.bias")) {}

void Mlp::forward(const Pass& pass, ConstView x, Output to, Saved& s) const {
  const Device& device = pass.device;
  s.x = gather_tokens(device, pass.saved, x);
  s.h = pass.keep({pass.batch.tokens(), (activation_.gated ? 2 : 1) * width_});
  s.a = pass.keep({pass.batch.tokens(), width_});
  up_.forward(device, s.x, s.h);
  device.backend.activation_forward(activation_, s.h, {}, s.a);
  down_.forward_sum(device, s.a, to);
}

void Mlp::backward(const Pass& pass, ConstView dy, const Saved& s, View dx) const {
  const Device& device = pass.device;
  const Arena::Scope scope(device.scratch);
  down_.backward_bias(device, dy);
  dy = gather_tokens(device, device.scratch, dy);
  const View da = device.temp(s.a.shape()), dh = device.temp(s.h.shape());
  down_.backward_input(device, dy, da);
  down_.backward_weight(device, dy, s.a);
  device.backend.activation_backward(activation_, da, s.h, {}, dh, {});
  up_.backward_weight(device, dh, s.x);
  up_.backward_bias(device, dh);
  up_.backward_input_sum(device, dh, dx);
}

}  // namespace sy
