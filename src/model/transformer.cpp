#include "src/model/transformer.h"

#include <cmath>
#include <numeric>

namespace sy {

struct Transformer::Saved {
  std::vector<Block::Saved> blocks;
  std::vector<View> inputs;  // [T, D] of each block
  View last, normed, stats;  // [T, D], [T, D], [T, 2]
};

namespace {

Index first_row(const ParamStore& store, const Mesh& mesh, Index vocab) {
  for (const ParamSpec& spec : store.specs())
    if (spec.name == "embedding.weight") return owned_box(spec.shape, spec.split, mesh.layout, mesh.coord).begin[0];
  SY_ASSERT(false, "no embedding of {} rows", vocab);
}

Param output_weight(const ParamStore& store) {
  const Param own = store.find("output.weight");
  return own ? own : store.get("embedding.weight");  // tied
}

}  // namespace

Transformer::Transformer(const Config& config, const ParamStore& store, const Mesh& mesh, View router_bias)
    : config_(config),
      embedding_(store.get("embedding.weight")),
      embedding_first_(first_row(store, mesh, 0)),
      final_norm_({config.model.norm, static_cast<float>(config.model.norm_eps)}, store.find("final_norm.weight"),
                  store.find("final_norm.bias")),
      head_(config, output_weight(store), embedding_first_) {
  for (Index layer = 0; layer < config.model.layers; ++layer) {
    View bias;
    if (config.is_moe(layer)) {
      if (router_bias) bias = router_bias.rows(moe_layers(), 1).reshape({config.moe.experts});
      moe_layer_ids_.push_back(layer);
    }
    blocks_.emplace_back(config, store, layer, bias);
  }
}

View Transformer::forward(const Context& ctx, ConstView ids, Saved& s) const {
  const Index T = ctx.tokens(), D = config_.model.d_model;
  View x = ctx.keep({T, D});
  if (ctx.mesh.tp->size() == 1) {
    ctx.backend.embedding_forward(ids, embedding_.weight, embedding_first_, x);
  } else {  // each rank knows a part of the vocabulary: the sum over ranks has every row
    const Arena::Scope scope(ctx.scratch);
    const View partial = ctx.temp({ctx.full_tokens(), D});
    ctx.backend.embedding_forward(ids, embedding_.weight, embedding_first_, partial);
    ctx.mesh.tp->reduce_scatter(partial, x);
  }
  s.blocks.resize(blocks_.size());
  Index moe = 0;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const View stats = blocks_[i].is_moe() ? ctx.statistics.layer(moe++) : View{};
    s.inputs.push_back(x);
    if (!config_.train.recompute) {
      x = blocks_[i].forward(ctx, x, s.blocks[i], stats);
      continue;
    }
    const View y = ctx.keep(x.shape());  // all that outlives the block
    const Arena::Scope scope(ctx.saved);
    ctx.backend.copy(blocks_[i].forward(ctx, x, s.blocks[i], stats), y);
    x = y;
  }
  s.last = x;
  s.normed = ctx.keep({T, D});
  s.stats = ctx.saved.f32({T, 2});
  final_norm_.forward(ctx, x, s.normed, s.stats);
  return s.normed;
}

void Transformer::train(const Context& ctx, ConstView ids, ConstView targets, const LayerDone& layer_done) const {
  const Arena::Scope saved_scope(ctx.saved), scratch_scope(ctx.scratch);
  const Index T = ctx.tokens(), D = config_.model.d_model;
  Saved s;
  const View x = forward(ctx, ids, s);
  const View losses = ctx.scratch.f32({ctx.full_tokens()}), dx = ctx.temp({T, D}), d = ctx.temp({T, D});
  head_.loss(ctx, x, targets, losses, dx);

  ctx.backend.fill(d, 0);
  final_norm_.backward(ctx, dx, s.last, s.stats, d);
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const Arena::Scope scope(ctx.saved);
    if (config_.train.recompute) {
      Context again = ctx;  // counted and observed once already
      again.observer = nullptr;
      blocks_[i].forward(again, s.inputs[i], s.blocks[i], {});
    }
    blocks_[i].backward(ctx, d, s.blocks[i]);
    if (layer_done) layer_done(static_cast<Index>(i));
  }

  const ConstView dy = gather_tokens(ctx, ctx.scratch, d);
  ctx.backend.embedding_backward(ids, dy, embedding_first_, embedding_.grad);
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

std::vector<float> rope_table(const Config& config, Index positions) {
  const Index rotated =
      static_cast<Index>(static_cast<double>(config.model.head_dim) * config.model.rope_fraction / 2) * 2;
  std::vector<float> table;
  table.reserve(positions * rotated);
  for (Index p = 0; p < positions; ++p)
    for (Index i = 0; i < rotated / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(config.model.rope_theta, -2.0 * i / rotated);
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  return table;
}

}  // namespace sy
