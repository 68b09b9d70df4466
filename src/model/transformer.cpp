#include "src/model/transformer.h"

#include <cmath>

namespace sy {

struct Transformer::Saved {
  std::vector<Block::Saved> blocks;
  std::vector<View> inputs;  // [T, D] of each block
  View last, normed, stats;  // [T, D], [T, D], [T, 2]
};

namespace {

Param output_weight(const ParamStore& store) {
  const Param own = store.find("output.weight");
  return own ? own : store.get("embedding.weight");  // tied
}

}  // namespace

Transformer::Transformer(const Config& config, const ParamStore& store, View router_bias)
    : d_model_(config.model.d_model),
      recompute_(config.train.recompute),
      embedding_(store),
      final_norm_(final_norm_spec(config).desc(), store, "final_norm"),
      head_(config, output_weight(store), store.box("embedding.weight").begin[0]) {
  for (const BlockSpec& spec : block_specs(config)) {
    const Index layer = static_cast<Index>(blocks_.size());
    View bias;
    if (const MoeSpec* moe = spec.moe()) {
      if (router_bias) bias = router_bias.rows(moe_layers(), 1).reshape({moe->experts});
      moe_layer_ids_.push_back(layer);
    }
    blocks_.emplace_back(spec, d_model_, layer, store, bias);
  }
}

View Transformer::forward(const Context& ctx, ConstView ids, Saved& s) const {
  View x = ctx.keep({ctx.tokens(), d_model_});
  embedding_.forward(ctx, ids, x);
  s.blocks.resize(blocks_.size());
  Index moe = 0;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const View stats = blocks_[i].is_moe() ? ctx.statistics.layer(moe++) : View{};
    s.inputs.push_back(x);
    if (!recompute_) {
      x = blocks_[i].forward(ctx, x, s.blocks[i], stats);
      continue;
    }
    const View y = ctx.keep(x.shape());  // all that outlives the block
    const Arena::Scope scope(ctx.saved);
    ctx.backend.copy(blocks_[i].forward(ctx, x, s.blocks[i], stats), y);
    x = y;
  }
  s.last = x;
  s.normed = ctx.keep(x.shape());
  s.stats = ctx.saved.f32({x.dim(0), 2});
  final_norm_.forward(ctx, x, s.normed, s.stats);
  return s.normed;
}

void Transformer::train(const Context& ctx, ConstView ids, ConstView targets, const LayerDone& layer_done) const {
  const Arena::Scope saved_scope(ctx.saved), scratch_scope(ctx.scratch);
  const Index T = ctx.tokens(), D = d_model_;
  Saved s;
  const View x = forward(ctx, ids, s);
  const View losses = ctx.scratch.f32({ctx.full_tokens()}), dx = ctx.temp({T, D}), d = ctx.temp({T, D});
  head_.loss(ctx, x, targets, losses, dx);

  ctx.backend.fill(d, 0);
  final_norm_.backward(ctx, dx, s.last, s.stats, d);
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const Arena::Scope scope(ctx.saved);
    if (recompute_) {
      Context again = ctx;  // counted and observed once already
      again.observer = nullptr;
      blocks_[i].forward(again, s.inputs[i], s.blocks[i], {});
    }
    blocks_[i].backward(ctx, d, s.blocks[i]);
    if (layer_done) layer_done(static_cast<Index>(i));
  }

  embedding_.backward(ctx, ids, d);
}

void Transformer::evaluate(const Context& ctx, ConstView ids, ConstView targets) const {
  const Arena::Scope saved_scope(ctx.saved), scratch_scope(ctx.scratch);
  Saved s;
  const View x = forward(ctx, ids, s);
  const View losses = ctx.scratch.f32({ctx.full_tokens()});
  head_.loss(ctx, x, targets, losses, {});
}

void Transformer::next_logits(const Context& ctx, ConstView ids, View logits) const {
  const Arena::Scope saved_scope(ctx.saved), scratch_scope(ctx.scratch);
  Saved s;
  const View x = forward(ctx, ids, s);
  head_.logits(ctx, x.rows(x.dim(0) - 1, 1), logits.reshape({1, logits.elements()}));
}

std::vector<float> rope_table(const RopeSpec& rope, Index positions) {
  std::vector<float> table;
  table.reserve(positions * rope.rotated);
  for (Index p = 0; p < positions; ++p)
    for (Index i = 0; i < rope.rotated / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(rope.theta, -2.0 * i / rope.rotated);
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  return table;
}

}  // namespace sy
