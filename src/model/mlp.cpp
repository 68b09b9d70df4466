#include "src/model/mlp.h"

namespace sy {
namespace {

constexpr FfnActivation sigmoid{Activation::sigmoid, false};

}  // namespace

Mlp::Mlp(const MlpSpec& spec, Index d_model, ParamStore& store, const std::string& prefix, Param gate)
    : activation_(spec.activation),
      width_(store.get(prefix + "up.weight").weight.dim(1)),
      up_(store, store.get(prefix + "up.weight"), d_model, store.find(prefix + "up.bias")),
      down_(store, store.get(prefix + "down.weight"), width_, store.find(prefix + "down.bias")) {
  SY_ASSERT(!(gate && spec.bias), "{}: a gate does not multiply the last bias", prefix);
  if (gate) gate_.emplace(store, gate, d_model);
}

void Mlp::forward(const Pass& pass, ConstView x, Output to, Saved& s) const {
  const Device& device = pass.device;
  s.x = gather_tokens(device, pass.saved, x);
  s.h = pass.keep({pass.batch.tokens(), (activation_.gated ? 2 : 1) * width_});
  if (gate_) {
    s.gate_logits = pass.saved.f32({pass.batch.tokens()});
    s.gate = pass.saved.f32({pass.batch.tokens()});
    gate_->forward(device, s.x, s.gate_logits.reshape({pass.batch.tokens(), 1}));
    const Shape rows = {pass.batch.sequences, pass.batch.seq_len};
    device.backend.activation_forward(sigmoid, s.gate_logits.reshape(rows), {}, s.gate.reshape(rows));
  }
  const Arena::Scope scope(device.scratch);
  const View a = device.temp({pass.batch.tokens(), width_});
  // The gate multiplies each row before the second GEMM, which is linear.
  up_.forward_activated(device, activation_, s.x, s.gate, s.h, a);
  down_.forward_sum(device, a, to);
}

void Mlp::backward(const Pass& pass, ConstView dy, const Saved& s, View dx) const {
  const Device& device = pass.device;
  const Arena::Scope scope(device.scratch);
  down_.backward_bias(device, dy);
  dy = gather_tokens(device, device.scratch, dy);
  // Computing a again is cheaper than saving it.
  const View a = device.temp({dy.dim(0), width_}), dh = device.temp(s.h.shape());
  const View dgate = gate_ ? device.scratch.f32(s.gate.shape()) : View{};
  down_.backward_activated(device, activation_, dy, s.h, s.gate, dh, dgate, a);
  down_.backward_weight(device, dy, a);
  up_.backward_weight(device, dh, s.x);
  up_.backward_bias(device, dh);
  if (!gate_) return up_.backward_input_sum(device, dh, dx);

  // Each rank has a shard of the width, so its gradient with respect to the gate is partial, like
  // dx. sum_tokens sums both over the ranks.
  const Index tokens = pass.batch.tokens();
  const Shape rows = {pass.batch.sequences, pass.batch.seq_len};
  const View dsigmoid = device.scratch.f32(rows), dlogits = device.temp({tokens, 1});
  device.backend.activation_backward(sigmoid, dgate.reshape(rows), s.gate_logits.reshape(rows), {}, dsigmoid, {});
  device.backend.convert(dsigmoid.reshape({tokens, 1}), dlogits);
  gate_->backward_weight(device, dlogits, s.x);
  sum_tokens(device, dx, [&](View partial) {
    up_.backward_input(device, dh, partial);
    gate_->backward_input(device, dlogits, partial, true);
  });
}

}  // namespace sy
