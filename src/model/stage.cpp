#include "src/model/stage.h"

#include "kernels/ops/elementwise.h"
#include "src/model/load_balancing.h"

namespace sy {
namespace {

Param output_weight(const ParamStore& store) {
  const Param own = store.find("output.weight");
  return own ? own : store.get("embedding.weight");  // tied
}

}  // namespace

Stage::Stage(const Config& config, ParamStore& store, Range layers, RouterTables routers, const RopeTables& rope)
    : store_(store), first_layer_(layers.begin), end_layer_(layers.end), recompute_(config.train.recompute) {
  const std::vector<BlockSpec> specs = block_specs(config);
  SY_ASSERT(0 <= layers.begin && layers.begin < layers.end && layers.end <= config.model.layers,
            "layers {} to {} of {}", layers.begin, layers.end, config.model.layers);
  const Index routers_of_all = count_moe(specs);
  if (!config.stacks.empty()) {
    SY_ASSERT(layers.size() == config.model.layers, "a stage of {} of the layers of an encoder-decoder", layers.size());
    first_layer_ = config.stacks[0].model.layers;
    const Index of_encoder = count_moe({specs.begin(), specs.begin() + first_layer_});
    encoder_.emplace(config, store, routers.of({0, of_encoder}), rope);
    moe_layer_ids_ = encoder_->moe_layer_ids();
    routers = routers.of({of_encoder, routers_of_all});
  }
  if (layers.begin == 0)
    embedding_.emplace(config.stacks.empty() ? config : config.of_stack(1), store, rope.positions(),
                       decoder_prefix(config));
  SublayerCounts counts;
  const SublayerContext context{store, rope, routers, counts};
  const auto add_ids = [&](Index layer) {
    moe_layer_ids_.resize(static_cast<std::size_t>(encoder_routers() + counts.routers), layer);
  };
  if (config.train.reversible) {
    SY_ASSERT(layers.size() == config.model.layers && config.stacks.empty() && config.model.mtp_depth == 0,
              "a stage of {} reversible layers of {}", layers.size(), config.model.layers);
    reversible_.emplace(config.model.reversible_output);
  }
  for (Index layer = first_layer_; layer < layers.end; ++layer) {
    const BlockSpec& spec = specs[static_cast<std::size_t>(layer)];
    if (const MoeSpec* moe = spec.find<MoeSpec>()) moe_ = *moe;
    if (reversible_)
      reversible_->add(spec, layer, context);
    else
      blocks_.emplace_back(spec, layer, context);
    add_ids(layer);
  }
  decoder_routers_ = counts.routers;
  if (layers.end == config.model.layers)
    for (Index layer = layers.end; layer < config.num_blocks(); ++layer) {
      SY_ASSERT(embedding_, "multi-token prediction in a stage without the embedding");
      const BlockSpec& spec = specs[static_cast<std::size_t>(layer)];
      if (const MoeSpec* moe = spec.find<MoeSpec>()) moe_ = *moe;
      mtp_.emplace_back(config, spec, layer, context);
      add_ids(layer);
    }
  SY_ASSERT(!moe_ || !moe_->router.joint_balancing || moe_layers() == routers_of_all,
            "one load-balance loss of {} layers, of which a stage has {}", routers_of_all, moe_layers());
  if (layers.end == config.model.layers) {
    final_norm_.emplace(final_norm_spec(config), store, decoder_prefix(config) + "final_norm");
    if (config.model.output_transform) transform_.emplace(config, store);
    head_.emplace(config, store, output_weight(store), store.box("embedding.weight").begin[0]);
  }
}

View Stage::forward(const ExecutionContext& context, MicroBatchState& state, View x) {
  LayerContext layer{context, state.batch, state.batch.decoder(), state.saved, state.cache};
  layer.routing_hook = state.statistics.routing_hook;
  layer.recompute = recompute_;
  layer.max_logits = state.statistics.max_logits;
  layer.batch_norm = state.batch_norm;
  if (embedding_) store_.wait_for_bucket(embedding_bucket);
  if (encoder_ && layer.has_encoder()) {
    TokenStream& stream = state.batch.streams.front();
    stream.output = encoder_->forward(layer.of_encoder(), state.encoder);
  }
  if (embedding_) x = embedding_->forward(layer, state.embedding);
  state.blocks.resize(blocks_.size());
  if (moe_) state.load_balance = make_load_balance_state(layer, active_routers(state), moe_->experts);
  layer.load_balance = state.load_balance;
  if (reversible_)
    x = reversible_->forward(layer, x, state.reversible,
                             [&](std::size_t i) { store_.wait_for_bucket(layer_bucket(i)); });
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    store_.wait_for_bucket(layer_bucket(i));
    const View y = layer.save(x.shape());
    blocks_[i].forward(layer, x, y, state.blocks[i]);
    x = y;
  }
  state.last = x;
  if (final_norm_) {
    store_.wait_for_bucket(head_bucket());
    state.normed = final_norm_->forward(layer, x, state.moments);
    state.output = transform_ ? transform_->forward(layer, state.normed, state.transform) : state.normed;
  }
  ConstView hidden = state.normed;
  state.mtp.resize(state.mtp_batches.size());
  for (std::size_t i = 0; i < state.mtp.size(); ++i) {
    store_.wait_for_bucket(module_bucket(i));
    hidden = mtp_[i].forward(layer.of(state.mtp_batches[i]), *embedding_, hidden, state.mtp[i]);
  }
  // This comes after the last wait for new weights. Its all-gather would wait for all of them.
  if (!state.batch.generation) load_balancing(layer, state);
  return final_norm_ ? state.normed : state.last;
}

void Stage::load_balancing(const LayerContext& layer, const MicroBatchState& state) const {
  const View sums = state.statistics.layers;
  const auto rows = [&](Index first, Index n) { return sums ? sums.rows(first, n) : sums; };
  if (encoder_) encoder_->load_balancing(layer.of_encoder(), state.encoder, rows(0, encoder_routers()));
  if (moe_)
    load_balancing_loss(layer, moe_->router, state.load_balance, rows(encoder_routers(), active_routers(state)));
}

void Stage::backward(const ExecutionContext& context, MicroBatchState& state, View d, const BackwardHooks& hooks) {
  LayerContext layer{context, state.batch, state.batch.decoder(), state.saved};
  if (hooks.on_dispatch_started) layer.on_dispatch_started = &hooks.on_dispatch_started;
  layer.load_balance = state.load_balance;
  layer.recompute = recompute_;
  layer.indexer_loss = state.statistics.indexer_loss;
  layer.batch_norm = state.batch_norm;
  layer.batch_norm.replay = true;  // every forward of a norm from here on is a second one
  const Arena::Scope of_encoder(context.scratch);
  if (encoder_) {
    TokenStream& stream = state.batch.streams.front();
    stream.doutput = context.temp(stream.output.shape());
    run(context.device, ops::Fill{.x = stream.doutput, .value = 0});
  }
  if (head_) {
    const Arena::Scope scope(context.scratch);
    const View dnormed = context.temp(d.shape());
    const View dhidden = state.mtp.empty() ? View{} : context.temp(d.shape());  // by the modules
    if (dhidden) run(context.device, ops::Fill{.x = dhidden, .value = 0});
    for (std::size_t i = state.mtp.size(); i-- > 0;) {
      const LayerContext module = layer.of(state.mtp_batches[i]);
      const View sums =
          state.statistics.mtp ? state.statistics.mtp.rows(static_cast<Index>(i), 1).reshape({2}) : View{};
      mtp_[i].backward(module, *embedding_, *head_, state.mtp[i], dhidden, sums);
      if (hooks.on_gradients_ready) hooks.on_gradients_ready(module_bucket(i));
    }
    head_->loss(context, state.batch, state.output, dnormed, state.statistics.loss);
    if (transform_) transform_->backward(layer, state.normed, state.transform, dnormed);
    if (dhidden) run(context.device, ops::Add{.x = dhidden, .y = dnormed});
    final_norm_->backward(layer, dnormed, state.last, state.moments, d);
    if (hooks.on_gradients_ready) hooks.on_gradients_ready(head_bucket());
  }
  const auto report_layer = [&](std::size_t i) {
    if (hooks.on_gradients_ready) hooks.on_gradients_ready(layer_bucket(i));
  };
  if (reversible_) d = reversible_->backward(layer, d, state.reversible, report_layer);
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    blocks_[i].backward(layer, d, state.blocks[i]);
    report_layer(i);
  }
  if (!embedding_) return;
  embedding_->backward(layer, state.embedding, d);
  if (encoder_) encoder_->backward(layer.of_encoder(), state.encoder, layer.encoder().doutput, hooks);
  if (hooks.on_gradients_ready) hooks.on_gradients_ready(embedding_bucket);
}

std::vector<float> Stage::logits(const ExecutionContext& context, const MicroBatchState& state, Range tokens,
                                 Index vocab) const {
  const Arena::Scope scope(context.scratch);
  const ConstView x = gather_tokens(context, context.scratch, state.output);
  return head_->logits(context, x.rows(tokens.begin, tokens.size()), vocab);
}

std::vector<CacheSpec> Stage::cache_specs() const {
  std::vector<CacheSpec> specs;
  for (const Block& block : blocks_) block.append_cache_specs(specs);
  if (reversible_) reversible_->append_cache_specs(specs);
  return specs;
}

}  // namespace sy
