#include "src/model/output_transform.h"

#include "kernels/ops/activation.h"
#include "src/params/block_specs.h"

namespace sy {
namespace {

constexpr FfnActivation gelu{Activation::gelu, false};

}  // namespace

OutputTransform::OutputTransform(const Config& config, ParamStore& store)
    : dense_(store, "output_transform"), norm_(norm_spec(config), store, "output_transform_norm") {}

View OutputTransform::forward(const LayerContext& layer, ConstView x, Saved& s) const {
  s.hidden = layer.save(x.shape());
  s.activated = layer.save(x.shape());
  dense_.forward_activated(layer.context, gelu, x, {}, s.hidden, s.activated);
  return norm_.forward(layer, s.activated, s.moments);
}

void OutputTransform::backward(const LayerContext& layer, ConstView x, const Saved& s, View d) {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  const View dactivated = context.temp(d.shape()), dhidden = context.temp(d.shape());
  norm_.backward(layer, d, s.activated, s.moments, dactivated);
  run(context.device, ops::ActivationBackward{.dy = dactivated, .h = s.hidden, .activation = gelu, .dh = dhidden});
  dense_.backward_params(context, dhidden, x);
  dense_.backward_input(context, dhidden, d);
}

}  // namespace sy
