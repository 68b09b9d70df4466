#include "src/model/mlp.h"

#include "kernels/ops/activation.h"
#include "kernels/ops/bias.h"
#include "kernels/ops/elementwise.h"
#include "src/model/relative_bias.h"

namespace sy {
namespace {

constexpr FfnActivation sigmoid{Activation::sigmoid, false};

}  // namespace

Mlp::Mlp(const MlpSpec& spec, const SublayerContext& context, const std::string& prefix, const std::string& output_gate)
    : activation_(spec.activation), gate_up_(context.store, prefix + "up"), down_(context.store, prefix + "down") {
  SY_ASSERT(!(spec.output_gate && spec.bias), "{}: a gate does not multiply the last bias", prefix);
  if (spec.output_gate) output_gate_.emplace(context.store, output_gate);
  if (activation_.act != Activation::xielu) return;
  xielu_ = context.store.get_fused(prefix + "xielu.positive", 2).reshape({2});
}

void Mlp::forward(const LayerContext& layer, ConstView x, Output to, Saved& s) const {
  const ExecutionContext& context = layer.context;
  s.x = gather_tokens(context, layer.inputs(), x);
  s.h = layer.hidden().take(hidden_shape(layer), context.dtype);
  if (output_gate_) {
    s.gate_logits = layer.saved.f32({layer.stream.tokens()});
    s.gate = layer.saved.f32({layer.stream.tokens()});
    output_gate_->forward(context, s.x, s.gate_logits);
    const Shape rows = {layer.stream.sequences, layer.stream.seq_len};
    run(context.device,
        ops::ActivationForward{.h = s.gate_logits.reshape(rows), .activation = sigmoid, .y = s.gate.reshape(rows)});
  }
  const Arena::Scope scope(context.scratch);
  const View a = context.temp({layer.stream.tokens(), down_.inputs()});
  // The gate multiplies each row before the second GEMM, which is linear.
  first_product(context, s, a);
  down_.forward_sum(context, a, to);
}

void Mlp::recompute(const LayerContext& layer, ConstView x, Saved& s) const {
  const ExecutionContext& context = layer.context;
  if (layer.recompute == Recompute::norms) s.x = gather_tokens(context, layer.inputs(), x);
  if (layer.recompute != Recompute::experts) return;
  s.h = layer.save(hidden_shape(layer));
  const Arena::Scope scope(context.scratch);
  const View a = context.temp({layer.stream.tokens(), down_.inputs()});
  first_product(context, s, a);
}

void Mlp::first_product(const ExecutionContext& context, const Saved& s, View a) const {
  if (!xielu_) return gate_up_.forward_activated(context, activation_, s.x, s.gate, s.h, a);
  const Arena::Scope scope(context.scratch);
  gate_up_.forward(context, s.x, s.h);
  run(context.device, ops::XieluForward{.h = s.h, .parameters = as_f32(context, xielu_.weight), .y = a});
}

void Mlp::backward_activation(const ExecutionContext& context, ConstView dy, const Saved& s, View dh, View dgate,
                              View a) const {
  if (!xielu_) return down_.backward_activated(context, activation_, dy, s.h, s.gate, dh, dgate, a);
  const Arena::Scope scope(context.scratch);
  const ConstView parameters = as_f32(context, xielu_.weight);
  const View dparameters = xielu_.grad ? context.scratch.f32({dy.dim(0), 2}) : View{};
  down_.backward_input(context, dy, a);
  run(context.device,
      ops::XieluBackward{.dy = a, .h = s.h, .parameters = parameters, .dh = dh, .dparameters = dparameters});
  run(context.device, ops::XieluForward{.h = s.h, .parameters = parameters, .y = a});
  if (dparameters) run(context.device, ops::BiasBackward{.dy = dparameters, .dbias = xielu_.grad});
}

void Mlp::backward(const LayerContext& layer, ConstView dy, const Saved& s, View dx) {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  down_.backward_bias(context, dy);
  dy = gather_tokens(context, context.scratch, dy);
  // Computing a again is cheaper than saving it.
  const View a = context.temp({dy.dim(0), down_.inputs()}), dh = context.temp(s.h.shape());
  const View dgate = output_gate_ ? context.scratch.f32(s.gate.shape()) : View{};
  backward_activation(context, dy, s, dh, dgate, a);
  down_.backward_weight(context, dy, a);
  gate_up_.backward_params(context, dh, s.x);
  if (!output_gate_) return gate_up_.backward_input_sum(context, dh, dx);

  // Each rank has a shard of the width, so its gradient with respect to the gate is partial, like
  // dx. sum_tokens sums both over the ranks.
  const Index tokens = layer.stream.tokens();
  const Shape rows = {layer.stream.sequences, layer.stream.seq_len};
  const View dsigmoid = context.scratch.f32(rows), dlogits = context.temp({tokens, 1});
  run(context.device,
      ops::ActivationBackward{
          .dy = dgate.reshape(rows), .h = s.gate_logits.reshape(rows), .activation = sigmoid, .dh = dsigmoid});
  run(context.device, ops::Convert{.x = dsigmoid.reshape({tokens, 1}), .y = dlogits});
  output_gate_->backward_weight(context, dlogits, s.x);
  sum_tokens(context, dx, [&](View partial) {
    gate_up_.backward_input(context, dh, partial);
    output_gate_->backward_input(context, dlogits, partial, true);
  });
}

}  // namespace sy
