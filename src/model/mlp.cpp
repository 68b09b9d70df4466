#include "src/model/mlp.h"

namespace sy {

Mlp::Mlp(const MlpSpec& spec, Index d_model, const ParamStore& store, const std::string& prefix)
    : activation_(spec.activation),
      width_(store.get(prefix + "up.weight").weight.dim(1)),
      up_(store.get(prefix + "up.weight"), d_model, store.find(prefix + "up.bias")),
      down_(store.get(prefix + "down.weight"), width_, store.find(prefix + "down.bias")) {}

void Mlp::forward(const Context& ctx, ConstView x, Output to, Saved& s) const {
  s.x = gather_tokens(ctx, ctx.saved, x);
  s.h = ctx.keep({ctx.full_tokens(), (activation_.gated ? 2 : 1) * width_});
  s.a = ctx.keep({ctx.full_tokens(), width_});
  up_.forward(ctx, s.x, s.h);
  ctx.backend.activation_forward(activation_, s.h, {}, s.a);
  down_.forward_sum(ctx, s.a, to);
}

void Mlp::backward(const Context& ctx, ConstView dy, const Saved& s, View dx) const {
  const Arena::Scope scope(ctx.scratch);
  down_.backward_bias(ctx, dy);
  dy = gather_tokens(ctx, ctx.scratch, dy);
  const View da = ctx.temp(s.a.shape()), dh = ctx.temp(s.h.shape());
  down_.backward_input(ctx, dy, da);
  down_.backward_weight(ctx, dy, s.a);
  ctx.backend.activation_backward(activation_, da, s.h, {}, dh, {});
  up_.backward_weight(ctx, dh, s.x);
  up_.backward_bias(ctx, dh);
  up_.backward_input_sum(ctx, dh, dx);
}

}  // namespace sy
