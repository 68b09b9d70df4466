#include "src/model/moe.h"

namespace sy {
namespace {

// The halves of a gated FFN are one matrix to the grouped product: [E, halves, F, D] -> [E, halves * F, D].
Param join_halves(Param p) {
  const auto joined = [](View w) { return w ? w.reshape({w.dim(0), w.dim(1) * w.dim(2), w.dim(3)}) : View{}; };
  return {joined(p.weight), joined(p.grad)};
}

}  // namespace

Moe::Moe(const Config& config, const ParamStore& store, const std::string& prefix, View bias)
    : activation_(config.ffn_activation()),
      width_(store.get(prefix + "experts.down.weight").weight.dim(2)),
      router_(config, store, prefix, bias),
      up_(join_halves(store.get(prefix + "experts.up.weight"))),
      down_(store.get(prefix + "experts.down.weight")) {
  if (config.moe.shared_experts > 0) shared_.emplace(config, store, prefix + "shared.");
}

void Moe::forward(const Context& ctx, ConstView x, View y, Saved& s, RouterStats& stats) const {
  Backend& b = ctx.backend;
  const Index T = ctx.tokens(), k = router_.top_k(), D = x.dim(1);
  s.x = x;
  router_.forward(ctx, x, s.router, stats);
  const Routing& r = s.router.routing;
  s.exchange.emplace(b, *ctx.mesh.experts, r.counts, ctx.saved);
  Exchange& exchange = *s.exchange;
  const Index R = exchange.received();

  // What is sent need not outlive this function, unless it is what is received.
  const Arena::Scope scope(ctx.scratch);
  Arena& leaving = exchange.local() ? ctx.saved : ctx.scratch;
  const View sent = leaving.f32({exchange.sent(), D}), sent_gates = leaving.f32({exchange.sent()});
  b.gather_rows(x, r.tokens, sent);
  b.gather_rows(r.weights.reshape({T * k, 1}), r.rows, sent_gates.reshape({exchange.sent(), 1}));
  s.rows = exchange.dispatch(sent, ctx.saved, ctx.scratch);
  s.gates = exchange.dispatch(sent_gates, ctx.saved, ctx.scratch);

  s.h = ctx.saved.f32({R, (activation_.gated ? 2 : 1) * width_});
  const View a = ctx.scratch.f32({R, width_}), out = ctx.scratch.f32({R, D});
  b.grouped_gemm(s.rows, up_.weight, exchange.offsets(), s.h);
  b.activation_forward(activation_, s.h, s.gates, a);  // the weight of a row passes through the second product
  b.grouped_gemm(a, down_.weight, exchange.offsets(), out);
  const View back = exchange.combine(out, ctx.scratch, ctx.scratch);
  b.combine_rows(back, r.slots, true, y);
  if (shared_) shared_->forward(ctx, x, y, s.shared);
}

void Moe::backward(const Context& ctx, ConstView dy, const Saved& s, View dx) const {
  Backend& b = ctx.backend;
  const Arena::Scope scope(ctx.scratch);
  const Exchange& exchange = *s.exchange;
  const Routing& r = s.router.routing;
  const Index T = ctx.tokens(), k = router_.top_k(), D = dy.dim(1), R = exchange.received();

  const View dsent = ctx.scratch.f32({exchange.sent(), D});
  b.gather_rows(dy, r.tokens, dsent);
  const View dout = exchange.dispatch(dsent, ctx.scratch, ctx.scratch);  // [R, D]
  const View a = ctx.scratch.f32({R, width_}), da = ctx.scratch.f32({R, width_});
  b.activation_forward(activation_, s.h, s.gates, a);  // cheaper to compute again than to keep
  b.grouped_gemm_weight(dout, a, exchange.offsets(), down_.grad);
  b.grouped_gemm_input(dout, down_.weight, exchange.offsets(), da);
  const View dh = ctx.scratch.f32(s.h.shape()), dgates = ctx.scratch.f32({R});
  b.activation_backward(activation_, da, s.h, s.gates, dh, dgates);
  b.grouped_gemm_weight(dh, s.rows, exchange.offsets(), up_.grad);
  const View drows = ctx.scratch.f32({R, D});
  b.grouped_gemm_input(dh, up_.weight, exchange.offsets(), drows);

  if (shared_)
    shared_->backward(ctx, dy, s.shared, dx);
  else
    b.fill(dx, 0);
  const View back = exchange.combine(drows, ctx.scratch, ctx.scratch);
  b.combine_rows(back, r.slots, true, dx);
  const View dgates_back = exchange.combine(dgates, ctx.scratch, ctx.scratch);
  const View dweights = ctx.scratch.f32({T, k});
  b.combine_rows(dgates_back.reshape({exchange.sent(), 1}), r.slots.reshape({T * k, r.slots.dim(1) / k}), false,
                 dweights.reshape({T * k, 1}));
  router_.backward(ctx, dweights, s.x, s.router, dx);
}

}  // namespace sy
