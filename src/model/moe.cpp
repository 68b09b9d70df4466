#include "src/model/moe.h"

#include "dist/activity.h"

namespace sy {
namespace {

// Returns the rows of x: [A, D] in the order of the expert GEMMs. If the backend's GEMMs can read
// them through an index, no row is copied. Otherwise the rows are gathered into `room`: [R, D].
RowsOf by_row(Backend& b, ConstView x, ConstView index, View room) {
  if (b.reads_by_index()) return {x, index};
  b.gather_rows(x, index, room);
  return room;
}

}  // namespace

Moe::Moe(const MoeSpec& spec, Index d_model, ParamStore& store, const std::string& prefix, RouterTables tables)
    : activation_(spec.expert.activation), router_(spec, d_model, store, prefix, tables) {
  const Param up = store.get(prefix + "experts.up.weight"), down = store.get(prefix + "experts.down.weight");
  const Index local = down.weight.dim(0);
  width_ = down.weight.dim(2);
  // The grouped GEMM sees gate and up projection as one matrix.
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

void Moe::sort(const Pass& pass, ConstView places, ConstView weights, Index first_place, Index n, Saved& s) const {
  Backend& b = pass.device.backend;
  s.tokens = pass.saved.i32({n});
  s.slots = pass.saved.i32(places.shape());
  s.offsets = pass.saved.i32({up_.weight.values.dim(0) + 1});
  s.gates = pass.saved.f32({n});
  const View assignments = pass.device.scratch.i32({n});
  b.sort_assignments(places, first_place, assignments, s.tokens, s.slots, s.offsets);
  b.gather_rows(weights.reshape({places.elements(), 1}), assignments, s.gates.reshape({n, 1}));
}

void Moe::forward(const Pass& pass, ConstView x, Output to, Saved& s, const RoutingObserver* observer) const {
  const Device& device = pass.device;
  Backend& b = device.backend;
  const Arena::Scope scope(device.scratch);
  const Index T = pass.own_tokens(), k = router_.top_k(), D = x.dim(1);
  s.x = x;
  Traced part("route", {{"rows", T}});
  router_.forward(pass, x, s.router, observer);
  part.next("dispatch");
  const Routing& r = s.router.routing;
  s.exchange.emplace(b, device.mesh, router_.ranks(device), r.sends, device.scratch);
  Exchange& exchange = *s.exchange;

  // The host waits for the counts in plan(). Work that does not need them is enqueued before.
  const ConstView leaving = exchange.copies(x, device.scratch), weights = exchange.copies(r.weights, device.scratch);
  if (exchange.local()) sort(pass, exchange.places(), weights, 0, T * k, s);
  exchange.plan(pass.saved, device.scratch);
  const auto arrived = exchange.dispatch({{leaving, pass.saved}, {weights, device.scratch}}, device.scratch);
  if (pass.tokens_sent) (*pass.tokens_sent)();
  s.arrived = arrived[0];
  if (!exchange.local()) part.add({{"rows", exchange.sent()}, {"bytes", exchange.sent() * (row_bytes(x) + 8 * k)}});
  if (shared_) {  // overlaps with the dispatch
    const Traced shared("shared experts", {{"rows", T}});
    shared_->forward(pass, x, to, s.shared);
    to.from = to.y;
  }
  exchange.finish();

  const Index R = exchange.rows();
  part.next("experts", {{"rows", R}});
  if (!exchange.local()) sort(pass, exchange.places(), arrived[1], exchange.first_place(), R, s);
  s.tokens = s.tokens.rows(0, R);
  s.gates = s.gates.rows(0, R);
  const ExpertRows owned{s.offsets, exchange.offsets().data()};
  s.h = pass.keep({R, (activation_.gated ? 2 : 1) * width_});
  // `rows` holds the expert outputs, and before that their inputs if they are gathered.
  const View a = device.temp({R, width_}), rows = device.temp({R, D});
  // The weight of a row is applied before the second GEMM, which is linear.
  b.ffn_forward(activation_, by_row(b, s.arrived, s.tokens, rows), up_.weight, up_bias_.weight, owned, s.gates, s.h, a);
  b.grouped_gemm(a, down_.weight, owned, rows);
  if (down_bias_) b.grouped_bias_forward(down_bias_.weight, s.gates, owned, down_bias_column_, rows);
  part.next("combine", {{"rows", s.arrived.dim(0)}, {"bytes", s.arrived.size_bytes()}});
  exchange.combine({{rows, s.slots, to.from, to.y}}, device.scratch);
  exchange.finish();
}

void Moe::backward(const Pass& pass, ConstView dy, Saved& s, View dx) const {
  const Device& device = pass.device;
  Backend& b = device.backend;
  const Arena::Scope scope(device.scratch);
  Exchange& exchange = *s.exchange;
  const ExpertRows owned{s.offsets, exchange.offsets().data()};
  const Index T = pass.own_tokens(), k = router_.top_k(), D = dy.dim(1), R = exchange.rows();

  Traced part("dispatch");
  const ConstView leaving = exchange.copies(dy, device.scratch);
  if (!exchange.local()) part.add({{"rows", exchange.sent()}, {"bytes", exchange.sent() * row_bytes(dy)}});
  // [A, D]
  const ConstView dy_arrived = exchange.dispatch({{leaving, device.scratch}}, device.scratch)[0];
  if (pass.tokens_sent) (*pass.tokens_sent)();
  if (shared_) {  // overlaps with the dispatch
    const Traced shared("shared experts", {{"rows", T}});
    shared_->backward(pass, dy, s.shared, dx);
  }
  exchange.finish();

  part.next("experts", {{"rows", R}});
  const View a = device.temp({R, width_}),  // cheaper to recompute than to save
      rows = device.temp({b.reads_by_index() && !down_bias_ ? 0 : R, D}), drows = device.temp({R, D}),
             dh = device.temp(s.h.shape()), dgates = device.scratch.f32({R}), dweights = device.scratch.f32({T, k});
  const RowsOf dout = by_row(b, dy_arrived, s.tokens, rows);
  b.ffn_backward(activation_, dout, down_.weight, owned, s.h, s.gates, dh, dgates, a);
  if (down_bias_) {  // its gradient needs gathered rows
    if (dout.index) b.gather_rows(dy_arrived, s.tokens, rows);
    b.grouped_bias_backward(rows, down_bias_.weight, s.gates, owned, down_bias_column_, down_bias_.grad, dgates);
  }
  if (up_bias_) b.grouped_bias_backward(dh, up_bias_.weight, {}, owned, 0, up_bias_.grad, {});
  b.grouped_gemm_input(dh, up_.weight, owned, drows);
  part.next("combine", {{"rows", s.arrived.dim(0)}, {"bytes", s.arrived.size_bytes()}});
  exchange.combine({{drows, s.slots, shared_ ? dx : View{}, dx},
                    {dgates.reshape({R, 1}), s.slots.reshape({s.slots.elements(), 1}), {}, dweights}},
                   device.scratch);
  {  // overlaps with the combine
    const Traced weights("gradients of experts", {{"rows", R}});
    b.grouped_gemm_weight(dout, a, owned, down_.grad, down_.adds());
    b.grouped_gemm_weight(dh, by_row(b, s.arrived, s.tokens, rows), owned, up_.grad, up_.adds());
  }
  exchange.finish();
  part.next("route", {{"rows", T}});
  router_.backward(pass, dweights, s.x, s.router, dx);
}

}  // namespace sy
