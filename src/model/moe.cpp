#include "src/model/moe.h"

#include "dist/activity.h"

namespace sy {

Moe::Moe(const MoeSpec& spec, Index d_model, ParamStore& store, const std::string& prefix, RouterTables tables)
    : activation_(spec.expert.activation), router_(spec, d_model, store, prefix, tables) {
  const Param up = store.get(prefix + "experts.up.weight"), down = store.get(prefix + "experts.down.weight");
  const Index local = down.weight.dim(0);
  width_ = down.weight.dim(2);
  // The halves of a gated FFN are one matrix to the grouped product.
  up_ = store.matrix(up, {local, spec.expert.halves() * width_, d_model});
  down_ = store.matrix(down, down.weight.shape());
  if (spec.expert.bias) {
    up_bias_ = store.get(prefix + "experts.up.bias");
    for (View* v : {&up_bias_.weight, &up_bias_.grad})
      if (*v) *v = v->reshape({local, spec.expert.halves() * width_});
    down_bias_ = store.get(prefix + "experts.down.bias");
    down_bias_column_ = store.box(prefix + "experts.down.bias").begin[1];
  }
  if (spec.shared)
    shared_.emplace(*spec.shared, d_model, store, prefix + "shared.", store.find(prefix + "shared_gate.weight"));
}

void Moe::forward(const Pass& pass, ConstView x, Output to, Saved& s, RouterReport report) const {
  const Device& device = pass.device;
  Backend& b = device.backend;
  const Index T = pass.own_tokens(), k = router_.top_k(), D = x.dim(1);
  s.x = x;
  Traced part("route", {{"rows", T}});
  router_.forward(pass, x, s.router, report);
  part.next("dispatch");
  const Routing& r = s.router.routing;
  s.exchange.emplace(b, *device.mesh.experts, r.counts, pass.saved);
  Exchange& exchange = *s.exchange;

  // While the counts are on their way to the host, the rows are computed: no more than these. What is sent need not outlive
  // this function, unless it is what is received.
  const Arena::Scope scope(device.scratch);
  Arena& leaving = exchange.local() ? pass.saved : device.scratch;
  const Index most = r.rows.elements();
  const View rows = leaving.take({most, D}, device.dtype), gates = leaving.f32({most});
  b.gather_rows(x, r.tokens, rows);
  b.gather_rows(r.weights.reshape({T * k, 1}), r.rows, gates.reshape({most, 1}));
  exchange.plan(pass.saved);
  s.rows = exchange.dispatch(rows.rows(0, exchange.sent()), pass.saved, device.scratch);
  s.gates = exchange.dispatch(gates.rows(0, exchange.sent()), pass.saved, device.scratch);
  part.add({{"rows", exchange.sent()}, {"bytes", rows.rows(0, exchange.sent()).size_bytes()}});
  if (shared_) {  // while the rows travel
    const Traced shared("shared experts", {{"rows", T}});
    shared_->forward(pass, x, to, s.shared);
    to.add = true;
  }
  exchange.finish();

  const Index R = exchange.received();
  part.next("experts", {{"rows", R}});
  s.h = pass.keep({R, (activation_.gated ? 2 : 1) * width_});
  const View a = device.temp({R, width_}), out = device.temp({R, D});
  b.grouped_gemm(s.rows, up_.weight, exchange.expert_rows(), s.h);
  if (up_bias_) b.grouped_bias_forward(up_bias_.weight, {}, exchange.expert_rows(), 0, s.h);
  b.activation_forward(activation_, s.h, s.gates, a);  // the weight of a row passes through the second product
  b.grouped_gemm(a, down_.weight, exchange.expert_rows(), out);
  if (down_bias_) b.grouped_bias_forward(down_bias_.weight, s.gates, exchange.expert_rows(), down_bias_column_, out);
  part.next("combine", {{"rows", R}, {"bytes", out.size_bytes()}});
  const View back = exchange.combine(out, device.scratch, device.scratch);
  exchange.finish();
  b.combine_rows(back, r.slots, to.add, to.y);
}

void Moe::backward(const Pass& pass, ConstView dy, Saved& s, View dx) const {
  const Device& device = pass.device;
  Backend& b = device.backend;
  const Arena::Scope scope(device.scratch);
  Exchange& exchange = *s.exchange;
  const Routing& r = s.router.routing;
  const Index T = pass.own_tokens(), k = router_.top_k(), D = dy.dim(1), R = exchange.received(), n = exchange.sent();

  Traced part("dispatch", {{"rows", n}});
  const View dsent = device.temp({n, D});
  part.add({{"bytes", dsent.size_bytes()}});
  b.gather_rows(dy, r.tokens.rows(0, n), dsent);
  const View dout = exchange.dispatch(dsent, device.scratch, device.scratch);  // [R, D]
  if (shared_) {                                                               // while the rows travel
    const Traced shared("shared experts", {{"rows", T}});
    shared_->backward(pass, dy, s.shared, dx);
  } else {
    b.fill(dx, 0);
  }
  const View a = device.temp({R, width_}), da = device.temp({R, width_});
  b.activation_forward(activation_, s.h, s.gates, a);  // cheaper to compute again than to keep
  exchange.finish();

  part.next("experts", {{"rows", R}});
  b.grouped_gemm_input(dout, down_.weight, exchange.expert_rows(), da);
  const View dh = device.temp(s.h.shape()), dgates = device.scratch.f32({R}), drows = device.temp({R, D});
  b.activation_backward(activation_, da, s.h, s.gates, dh, dgates);
  if (down_bias_)
    b.grouped_bias_backward(dout, down_bias_.weight, s.gates, exchange.expert_rows(), down_bias_column_,
                            down_bias_.grad, dgates);
  if (up_bias_) b.grouped_bias_backward(dh, up_bias_.weight, {}, exchange.expert_rows(), 0, up_bias_.grad, {});
  b.grouped_gemm_input(dh, up_.weight, exchange.expert_rows(), drows);
  part.next("combine", {{"rows", R}, {"bytes", drows.size_bytes()}});
  const View back = exchange.combine(drows, device.scratch, device.scratch);
  const View dgates_back = exchange.combine(dgates, device.scratch, device.scratch);
  {  // while the rows travel back
    const Traced weights("gradients of experts", {{"rows", R}});
    b.grouped_gemm_weight(dout, a, exchange.expert_rows(), down_.grad);
    b.grouped_gemm_weight(dh, s.rows, exchange.expert_rows(), up_.grad);
  }
  exchange.finish();

  b.combine_rows(back, r.slots, true, dx);
  const View dweights = device.scratch.f32({T, k});
  b.combine_rows(dgates_back.reshape({n, 1}), r.slots.reshape({T * k, r.slots.dim(1) / k}), false,
                 dweights.reshape({T * k, 1}));
  part.next("route", {{"rows", T}});
  router_.backward(pass, dweights, s.x, s.router, dx);
}

}  // namespace sy
