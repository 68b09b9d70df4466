#include "src/model/moe.h"

namespace sy {
namespace {

// The halves of a gated FFN are one matrix to the grouped product: [E, halves, F, D] -> [E, halves * F, D].
Param join_halves(Param p) {
  const auto joined = [](View w) { return w ? w.reshape({w.dim(0), w.dim(1) * w.dim(2), w.dim(3)}) : View{}; };
  return {joined(p.weight), joined(p.grad)};
}

}  // namespace

Moe::Moe(const MoeSpec& spec, Index d_model, const ParamStore& store, const std::string& prefix, View bias)
    : activation_(spec.expert.activation),
      width_(store.get(prefix + "experts.down.weight").weight.dim(2)),
      router_(spec, d_model, store, prefix, bias),
      up_(join_halves(store.get(prefix + "experts.up.weight"))),
      down_(store.get(prefix + "experts.down.weight")) {
  if (spec.shared) shared_.emplace(*spec.shared, d_model, store, prefix + "shared.");
}

void Moe::forward(const Context& ctx, ConstView x, Output to, Saved& s, View stats) const {
  Backend& b = ctx.backend;
  const Index T = ctx.tokens(), k = router_.top_k(), D = x.dim(1);
  s.x = x;
  router_.forward(ctx, x, s.router, stats);
  const Routing& r = s.router.routing;
  s.exchange.emplace(b, *ctx.mesh.experts, r.counts, ctx.saved);
  Exchange& exchange = *s.exchange;

  // While the counts are on their way to the host, the rows are computed: no more than these. What is sent need not outlive
  // this function, unless it is what is received.
  const Arena::Scope scope(ctx.scratch);
  Arena& leaving = exchange.local() ? ctx.saved : ctx.scratch;
  const Index most = r.rows.elements();
  const View rows = leaving.take({most, D}, ctx.dtype), gates = leaving.f32({most});
  b.gather_rows(x, r.tokens, rows);
  b.gather_rows(r.weights.reshape({T * k, 1}), r.rows, gates.reshape({most, 1}));
  exchange.plan(ctx.saved);
  s.rows = exchange.dispatch(rows.rows(0, exchange.sent()), ctx.saved, ctx.scratch);
  s.gates = exchange.dispatch(gates.rows(0, exchange.sent()), ctx.saved, ctx.scratch);
  if (shared_) {  // while the rows travel
    shared_->forward(ctx, x, to, s.shared);
    to.add = true;
  }
  exchange.finish();

  const Index R = exchange.received();
  s.h = ctx.keep({R, (activation_.gated ? 2 : 1) * width_});
  const View a = ctx.temp({R, width_}), out = ctx.temp({R, D});
  b.grouped_gemm(s.rows, up_.weight, exchange.groups(), s.h);
  b.activation_forward(activation_, s.h, s.gates, a);  // the weight of a row passes through the second product
  b.grouped_gemm(a, down_.weight, exchange.groups(), out);
  const View back = exchange.combine(out, ctx.scratch, ctx.scratch);
  exchange.finish();
  b.combine_rows(back, r.slots, to.add, to.y);
}

void Moe::backward(const Context& ctx, ConstView dy, Saved& s, View dx) const {
  Backend& b = ctx.backend;
  const Arena::Scope scope(ctx.scratch);
  Exchange& exchange = *s.exchange;
  const Routing& r = s.router.routing;
  const Index T = ctx.tokens(), k = router_.top_k(), D = dy.dim(1), R = exchange.received(), n = exchange.sent();

  const View dsent = ctx.temp({n, D});
  b.gather_rows(dy, r.tokens.rows(0, n), dsent);
  const View dout = exchange.dispatch(dsent, ctx.scratch, ctx.scratch);  // [R, D]
  if (shared_)                                                           // while the rows travel
    shared_->backward(ctx, dy, s.shared, dx);
  else
    b.fill(dx, 0);
  const View a = ctx.temp({R, width_}), da = ctx.temp({R, width_});
  b.activation_forward(activation_, s.h, s.gates, a);  // cheaper to compute again than to keep
  exchange.finish();

  b.grouped_gemm_input(dout, down_.weight, exchange.groups(), da);
  const View dh = ctx.temp(s.h.shape()), dgates = ctx.scratch.f32({R}), drows = ctx.temp({R, D});
  b.activation_backward(activation_, da, s.h, s.gates, dh, dgates);
  b.grouped_gemm_input(dh, up_.weight, exchange.groups(), drows);
  const View back = exchange.combine(drows, ctx.scratch, ctx.scratch);
  const View dgates_back = exchange.combine(dgates, ctx.scratch, ctx.scratch);
  b.grouped_gemm_weight(dout, a, exchange.groups(), down_.grad);  // while the rows travel back
  b.grouped_gemm_weight(dh, s.rows, exchange.groups(), up_.grad);
  exchange.finish();

  b.combine_rows(back, r.slots, true, dx);
  const View dweights = ctx.scratch.f32({T, k});
  b.combine_rows(dgates_back.reshape({n, 1}), r.slots.reshape({T * k, r.slots.dim(1) / k}), false,
                 dweights.reshape({T * k, 1}));
  router_.backward(ctx, dweights, s.x, s.router, dx);
}

}  // namespace sy
