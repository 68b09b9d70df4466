#include "src/model/block.h"

#include "dist/phase.h"
#include "kernels/ops/elementwise.h"

namespace sy {

template <class F>
void ResidualBranch::forward(const LayerContext& layer, ConstView x, ConstView stream, View y, Saved& s, const F& f,
                             const Saved* same_input) const {
  const ExecutionContext& context = layer.context;
  const Shape shape = x.shape();
  const View sum = placement_.post_residual ? layer.save(shape) : y;
  s.x = s.in = x;
  if (placement_.pre && same_input) {
    s.in = same_input->in;
    s.moments = same_input->moments;
  } else if (placement_.pre) {
    const View in = layer.save(shape);
    s.moments = layer.saved.f32({shape[0], 2});
    norm_.forward(context, x, in, s.moments);
    s.in = in;
  }
  if (placement_.post_sublayer) {
    s.out = layer.save(shape);
    s.out_moments = layer.saved.f32({shape[0], 2});
    f(s.in, Output{.y = s.out});
    const Arena::Scope scope(context.scratch);
    const bool in_place = stream.bytes() == sum.bytes();
    const View normed = in_place ? context.temp(shape) : sum;
    out_norm_.forward(context, s.out, normed, s.out_moments);
    run(context.backend, ops::Add{.x = in_place ? normed : stream, .y = sum});
  } else {
    f(s.in, Output{.y = sum, .residual = placement_.normed_residual ? s.in : stream});
  }
  if (!placement_.post_residual) return;
  s.sum = sum;
  s.moments = layer.saved.f32({shape[0], 2});
  norm_.forward(context, sum, y, s.moments);
}

template <class F>
void ResidualBranch::backward(const LayerContext& layer, View d, const Saved& s, View dx, const F& f) const {
  const ExecutionContext& context = layer.context;
  Device& b = context.backend;
  const Arena::Scope scope(context.scratch);
  // Gradient with respect to the input of a norm that follows the sublayer.
  const View dsublayer = placement_.post_residual || placement_.post_sublayer ? context.temp(d.shape()) : d;
  if (placement_.post_residual) {
    run(b, ops::Fill{.x = dsublayer, .value = 0});
    norm_.backward(context, d, s.sum, s.moments, dsublayer);
    run(b, ops::Copy{.x = dsublayer, .y = d});
  }
  if (placement_.post_sublayer) {
    run(b, ops::Fill{.x = dsublayer, .value = 0});
    out_norm_.backward(context, d, s.out, s.out_moments, dsublayer);
  }
  const View din = context.temp(d.shape());
  f(dsublayer, din);
  if (placement_.normed_residual) {  // the residual is the norm's output, not its input
    run(b, ops::Add{.x = d, .y = din});
    run(b, ops::Fill{.x = dx, .value = 0});
  }
  if (placement_.pre)
    norm_.backward(context, din, s.x, s.moments, dx);
  else
    run(b, ops::Add{.x = din, .y = dx});
}

Block::Block(const BlockSpec& spec, Index d_model, Index layer, ParamStore& store, RouterTables router,
             const RopeTable* rope_table, Index positions)
    : layer_(layer),
      parallel_(spec.parallel),
      shared_norm_(spec.shared_norm),
      attention_branch_(spec, store, layer_prefix(layer) + "attention_norm",
                        layer_prefix(layer) + "attention_out_norm"),
      ffn_branch_(spec, store, layer_prefix(layer) + (spec.shared_norm ? "attention_norm" : "ffn_norm"),
                  layer_prefix(layer) + "ffn_out_norm") {
  SY_ASSERT(!parallel_ || !spec.norms.post_residual, "a parallel block with a norm after each residual addition");
  const AttentionSpec& attention = spec.attention;
  const std::string name = layer_prefix(layer) + "attention.";
  if (attention.latent)
    latent_attention_.emplace(attention, d_model, store, name, rope_table, positions);
  else
    attention_.emplace(attention, d_model, store, name, rope_table, positions);
  if (const MoeSpec* moe = spec.moe())
    moe_.emplace(*moe, d_model, store, layer_prefix(layer) + "moe.", router);
  else
    mlp_.emplace(std::get<MlpSpec>(spec.ffn), d_model, store, layer_prefix(layer) + "mlp.");
}

void Block::forward(const LayerContext& layer, View x, View y, Saved& s, const RoutingHook* routing_hook) const {
  RankContext& rank = layer.context.mesh.rank_context();
  const ScopedPhase phase(rank, "forward pass", layer_);
  const auto attention = [&](ConstView in, Output to) {
    const TraceScope trace(rank, "attention");
    if (latent_attention_)
      latent_attention_->forward(layer, in, to, s.latent_attention);
    else
      attention_->forward(layer, in, to, s.attention);
  };
  const auto ffn = [&](ConstView in, Output to) {
    const TraceScope trace(rank, moe_ ? "moe" : "mlp");
    if (moe_)
      moe_->forward(layer, in, to, s.moe, routing_hook);
    else
      mlp_->forward(layer, in, to, s.mlp);
  };
  const View middle = parallel_ ? y : layer.save(x.shape());
  attention_branch_.forward(layer, x, x, middle, s.attention_branch, attention);
  const ResidualBranch::Saved* const same_input = shared_norm_ ? &s.attention_branch : nullptr;
  ffn_branch_.forward(layer, parallel_ ? x : middle, middle, y, s.ffn_branch, ffn, same_input);
}

void Block::backward(const LayerContext& layer, View d, Saved& s) {
  RankContext& rank = layer.context.mesh.rank_context();
  const ScopedPhase phase(rank, "backward pass", layer_);
  const auto attention = [&](ConstView dy, View din) {
    const TraceScope trace(rank, "attention");
    if (latent_attention_)
      latent_attention_->backward(layer, dy, s.latent_attention, din);
    else
      attention_->backward(layer, dy, s.attention, din);
  };
  const auto ffn = [&](ConstView dy, View din) {
    const TraceScope trace(rank, moe_ ? "moe" : "mlp");
    if (moe_)
      moe_->backward(layer, dy, s.moe, din);
    else
      mlp_->backward(layer, dy, s.mlp, din);
  };
  if (!parallel_) {
    ffn_branch_.backward(layer, d, s.ffn_branch, d, ffn);
    attention_branch_.backward(layer, d, s.attention_branch, d, attention);
    return;
  }
  // Both branches read d, so neither may add to it before the other has finished.
  const Arena::Scope scope(layer.context.scratch);
  const View dx = layer.context.temp(d.shape());
  run(layer.context.backend, ops::Copy{.x = d, .y = dx});
  ffn_branch_.backward(layer, d, s.ffn_branch, dx, ffn);
  attention_branch_.backward(layer, d, s.attention_branch, dx, attention);
  run(layer.context.backend, ops::Copy{.x = dx, .y = d});
}

}  // namespace sy
