#include "src/model/moe.h"

#include "dist/phase.h"
#include "kernels/ops/bias.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/ffn.h"
#include "kernels/ops/grouped_gemm.h"
#include "kernels/ops/permute.h"

namespace sy {
namespace {

// Returns the rows of x in the order of the expert GEMMs, with the columns from `first` on. If the
// GEMMs read them through the index, no row is copied. Otherwise the rows are gathered into
// `buffer`: [R, D].
GatheredRows permuted(Device& b, bool by_index, ConstView x, Index first, ConstView index, View buffer) {
  if (by_index) return {x, index, first};
  run(b, ops::Permute{.x = x, .index = index, .first_column = first, .y = buffer});
  return buffer;
}

}  // namespace

Moe::Moe(const MoeSpec& spec, const SublayerContext& context, const std::string& prefix)
    : activation_(spec.expert.activation), router_(spec, context, prefix) {
  ParamStore& store = context.store;
  const Param gate_up = store.get(prefix + "experts.up.weight"), down = store.get(prefix + "experts.down.weight");
  const Index local = down.weight.dim(0);
  width_ = down.weight.dim(2);
  // The grouped GEMM sees gate and up projection as one matrix.
  gate_up_ = AdaptedWeight(store, gate_up, {local, spec.expert.num_projections() * width_, down.weight.dim(1)});
  down_ = AdaptedWeight(store, down, down.weight.shape());
  if (spec.expert.bias) {
    gate_up_bias_ = store.get(prefix + "experts.up.bias").reshape({local, spec.expert.num_projections() * width_});
    down_bias_ = store.get(prefix + "experts.down.bias");
    down_bias_column_ = store.box(prefix + "experts.down.bias").begin[1];
  }
  if (spec.shared) shared_.emplace(*spec.shared, context, prefix + "shared.", prefix + "shared_gate");
}

void Moe::build_permutation(const LayerContext& layer, ConstView physical_experts, ConstView weights,
                            Index first_physical_expert, Index n, Saved& s) const {
  Device& b = layer.context.device;
  s.tokens = layer.saved.i32({n});
  s.row_id_map = layer.saved.i32(physical_experts.shape());
  s.offsets = layer.saved.i32({gate_up_.shape()[0] + 1});
  s.row_weights = layer.saved.f32({n});
  run(b, ops::BuildPermutation{.physical_experts = physical_experts,
                               .first_expert = first_physical_expert,
                               .weights = weights,
                               .tokens = s.tokens,
                               .row_id_map = s.row_id_map,
                               .offsets = s.offsets,
                               .row_weights = s.row_weights});
}

void Moe::forward(const LayerContext& layer, ConstView x, Output to, Saved& s) const {
  const ExecutionContext& context = layer.context;
  Device& b = context.device;
  const Arena::Scope scope(context.scratch);
  const Index T = layer.own_tokens(), k = router_.top_k(), D = x.dim(1);
  s.x = x;
  TraceScope trace(context.mesh.rank_context(), "route", {{"rows", T}});
  router_.forward(layer, x, s.router);
  trace.next("dispatch");
  const Router::Saved& r = s.router;
  TokenDispatcher dispatcher(b, context.mesh, router_.placement(context));
  const CountExchange exchange = dispatcher.exchange_counts(r.dispatch_layout);

  // The host waits for the counts in finalize(). Work that does not need them is enqueued before.
  const PackedTokens packed = dispatcher.pack(r.dispatch_layout, x, r.weights, context.scratch);
  if (dispatcher.local()) build_permutation(layer, packed.physical_experts, packed.weights, 0, T * k, s);
  DispatchHandle& handle = s.dispatch.emplace(dispatcher.finalize(exchange, layer.saved, context.scratch));
  PendingDispatch dispatched = handle.dispatch(packed, layer.saved, context.scratch);
  if (layer.on_dispatch_started) (*layer.on_dispatch_started)();
  s.received_tokens = dispatched.received();
  s.first_value = dispatched.first_column();
  if (!handle.local()) trace.add({{"rows", handle.num_sent()}, {"bytes", handle.num_sent() * row_bytes(packed.rows)}});
  if (shared_) {  // overlaps with the dispatch
    const TraceScope shared(context.mesh.rank_context(), "shared experts", {{"rows", T}});
    shared_->forward(layer, x, to, s.shared);
    to.residual = to.y;
  }
  dispatched.wait();

  const Index R = handle.rows();
  trace.next("experts", {{"rows", R}});
  if (!handle.local())
    build_permutation(layer, dispatched.physical_experts(), dispatched.weights(), handle.first_physical_expert(), R, s);
  s.tokens = s.tokens.rows(0, R);
  s.row_weights = s.row_weights.rows(0, R);
  const GroupOffsets groups{s.offsets, handle.offsets().data()};
  s.h = layer.hidden().take(hidden_shape(R), context.dtype);
  // `rows` holds the expert outputs, and before that their inputs if they are gathered.
  const View a = context.temp({R, width_}), rows = context.temp({R, D});
  compute_hidden(context, s, rows, a);
  {
    const Arena::Scope down(context.scratch);
    run(b, ops::GroupedGemm{.x = a, .w = down_.sum(context), .groups = groups, .y = rows});
  }
  if (down_bias_)
    run(b, ops::GroupedBiasForward{.bias = down_bias_.weight,
                                   .row_scale = s.row_weights,
                                   .groups = groups,
                                   .first = down_bias_column_,
                                   .y = rows});
  const Index received = s.received_tokens.dim(0);
  trace.next("combine", {{"rows", received}, {"bytes", received * D * size_of(context.dtype)}});
  handle.combine({{rows, s.row_id_map, to.residual, to.y}}, context.scratch).wait();
}

bool Moe::uses_gathered_rows(const ExecutionContext& context) const {
  return context.device.supports_gathered_rows(
      context.dtype, {gate_up_.shape()[2], width_, gate_up_.adapter_width(), down_.adapter_width()});
}

// The weight of a row is applied before the second GEMM, which is linear.
void Moe::compute_hidden(const ExecutionContext& context, const Saved& s, View rows, View a) const {
  Device& b = context.device;
  const Arena::Scope scope(context.scratch);
  run(b,
      ops::FfnForward{.x = permuted(b, uses_gathered_rows(context), s.received_tokens, s.first_value, s.tokens, rows),
                      .w = gate_up_.sum(context),
                      .bias = gate_up_bias_.weight,
                      .groups = {s.offsets, s.dispatch->offsets().data()},
                      .row_scale = s.row_weights,
                      .activation = activation_,
                      .h = s.h,
                      .y = a});
}

void Moe::recompute(const LayerContext& layer, ConstView x, Saved& s) const {
  const ExecutionContext& context = layer.context;
  if (shared_) shared_->recompute(layer, x, s.shared);
  if (layer.recompute == Recompute::norms) {
    s.x = x;
    if (s.dispatch->local()) s.received_tokens = x;
  }
  if (layer.recompute != Recompute::experts) return;
  const Index R = s.dispatch->rows(), D = gate_up_.shape()[2];
  s.h = layer.save(hidden_shape(R));
  const Arena::Scope scope(context.scratch);
  const View a = context.temp({R, width_}), rows = context.temp({uses_gathered_rows(context) ? 0 : R, D});
  compute_hidden(context, s, rows, a);
}

void Moe::backward(const LayerContext& layer, ConstView dy, Saved& s, View dx) {
  const ExecutionContext& context = layer.context;
  Device& b = context.device;
  const Arena::Scope scope(context.scratch);
  DispatchHandle& handle = *s.dispatch;
  const GroupOffsets groups{s.offsets, handle.offsets().data()};
  const Index T = layer.own_tokens(), k = router_.top_k(), D = dy.dim(1), R = handle.rows();
  const bool by_index = uses_gathered_rows(context);

  TraceScope trace(context.mesh.rank_context(), "dispatch");
  const PackedTokens packed = handle.pack(dy, context.scratch);
  if (!handle.local()) trace.add({{"rows", handle.num_sent()}, {"bytes", handle.num_sent() * row_bytes(dy)}});
  PendingDispatch dispatched = handle.dispatch(packed, context.scratch, context.scratch);
  const ConstView received_dy = dispatched.received();  // [A, D]
  if (layer.on_dispatch_started) (*layer.on_dispatch_started)();
  if (shared_) {  // overlaps with the dispatch
    const TraceScope shared(context.mesh.rank_context(), "shared experts", {{"rows", T}});
    shared_->backward(layer, dy, s.shared, dx);
  }
  dispatched.wait();

  trace.next("experts", {{"rows", R}});
  const View a = context.temp({R, width_}),  // cheaper to recompute than to save
      rows = context.temp({by_index && !down_bias_ ? 0 : R, D}), drows = context.temp({R, D}),
             dh = context.temp(s.h.shape()), drow_weights = context.scratch.f32({R}),
             dweights = context.scratch.f32({T, k});
  const GatheredRows dout = permuted(b, by_index, received_dy, 0, s.tokens, rows);
  {
    const Arena::Scope down(context.scratch);
    run(b, ops::FfnBackward{.dout = dout,
                            .w = down_.sum(context),
                            .groups = groups,
                            .h = s.h,
                            .row_scale = s.row_weights,
                            .activation = activation_,
                            .dh = dh,
                            .drow_scale = drow_weights,
                            .y = a});
  }
  if (down_bias_) {  // its gradient needs gathered rows
    if (dout.index) run(b, ops::Permute{.x = received_dy, .index = s.tokens, .y = rows});
    run(b, ops::GroupedBiasBackward{.dy = rows,
                                    .bias = down_bias_.weight,
                                    .row_scale = s.row_weights,
                                    .groups = groups,
                                    .first = down_bias_column_,
                                    .dbias = down_bias_.grad,
                                    .drow_scale = drow_weights});
  }
  if (gate_up_bias_)
    run(b, ops::GroupedBiasBackward{
               .dy = dh, .bias = gate_up_bias_.weight, .groups = groups, .dbias = gate_up_bias_.grad});
  {
    const Arena::Scope up(context.scratch);
    run(b, ops::GroupedGemmDgrad{.dy = dh, .w = gate_up_.sum(context), .groups = groups, .dx = drows});
  }
  const Index received = s.received_tokens.dim(0);
  trace.next("combine", {{"rows", received}, {"bytes", received * D * size_of(context.dtype)}});
  PendingCombine combined =
      handle.combine({{drows, s.row_id_map, shared_ ? dx : View{}, dx},
                      {drow_weights.reshape({R, 1}), s.row_id_map.reshape({s.row_id_map.elements(), 1}), {}, dweights}},
                     context.scratch);
  {  // overlaps with the combine
    const TraceScope weights(context.mesh.rank_context(), "gradients of experts", {{"rows", R}});
    down_.backward(context, dout, a, groups);
    gate_up_.backward(context, dh, permuted(b, by_index, s.received_tokens, s.first_value, s.tokens, rows), groups);
  }
  combined.wait();
  trace.next("route", {{"rows", T}});
  router_.backward(layer, dweights, s.x, s.router, dx);
}

}  // namespace sy
