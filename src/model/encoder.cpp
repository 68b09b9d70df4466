#include "src/model/encoder.h"

namespace sy {

Encoder::Encoder(const Config& config, ParamStore& store, RouterTables routers, const RopeTables& rope)
    : store_(store),
      embedding_(config.of_stack(0), store, rope.positions(), "encoder."),
      final_norm_(final_norm_spec(config), store, "encoder.final_norm") {
  const std::vector<BlockSpec> specs = block_specs(config);
  SublayerCounts counts;
  const SublayerContext context{store, rope, routers, counts};
  for (Index layer = 0; layer < config.stacks[0].model.layers; ++layer) {
    const BlockSpec& spec = specs[static_cast<std::size_t>(layer)];
    if (const MoeSpec* moe = spec.find<MoeSpec>()) moe_ = *moe;
    blocks_.emplace_back(spec, layer, context);
    moe_layer_ids_.resize(static_cast<std::size_t>(counts.routers), layer);
  }
}

View Encoder::forward(LayerContext layer, Saved& s) const {
  View x = embedding_.forward(layer, s.embedding);
  s.blocks.resize(blocks_.size());
  if (moe_) layer.load_balance = s.load_balance = make_load_balance_state(layer, moe_layers(), moe_->experts);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    store_.wait_for_bucket(bucket_of_layer(static_cast<Index>(i)));
    const View y = layer.save(x.shape());
    blocks_[i].forward(layer, x, y, s.blocks[i]);
    x = y;
  }
  s.last = x;
  return s.normed = final_norm_.forward(layer, x, s.moments);
}

void Encoder::backward(LayerContext layer, Saved& s, ConstView d, const BackwardHooks& hooks) {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  layer.load_balance = s.load_balance;
  const View dlast = context.temp(d.shape());
  final_norm_.backward(layer, d, s.last, s.moments, dlast);
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    blocks_[i].backward(layer, dlast, s.blocks[i]);
    if (hooks.on_gradients_ready) hooks.on_gradients_ready(bucket_of_layer(static_cast<Index>(i)));
  }
  embedding_.backward(layer, s.embedding, dlast);
}

}  // namespace sy
