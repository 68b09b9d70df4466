#include "src/model/stage.h"

#include "src/model/balance.h"

namespace sy {
namespace {

Param output_weight(const ParamStore& store) {
  const Param own = store.find("output.weight");
  return own ? own : store.get("embedding.weight");  // tied
}

}  // namespace

void Slot::clear() {
  saved.clear();
  batch = {};
  report = {};
  embedding = {};
  cache = nullptr;
  balance = {};
  blocks.clear();
  inputs.clear();
  last = normed = moments = {};
}

Stage::Stage(const Config& config, ParamStore& store, Range layers, RouterTables routers, const RopeTables& rope)
    : store_(store), d_model_(config.model.d_model), first_layer_(layers.begin), recompute_(config.train.recompute) {
  const std::vector<BlockSpec> specs = block_specs(config);
  SY_ASSERT(0 <= layers.begin && layers.begin < layers.end && layers.end <= std::ssize(specs), "layers {} to {} of {}",
            layers.begin, layers.end, specs.size());
  if (layers.begin == 0) embedding_.emplace(config, store, rope.positions());
  for (Index layer = layers.begin; layer < layers.end; ++layer) {
    const BlockSpec& spec = specs[static_cast<std::size_t>(layer)];
    RouterTables router;
    if (const MoeSpec* moe = spec.moe()) {
      if (routers.bias) router.bias = routers.bias.rows(moe_layers(), 1).reshape({moe->experts});
      if (routers.places) router.places = routers.places.rows(moe_layers(), 1).reshape({moe->experts});
      moe_layer_ids_.push_back(layer);
      moe_ = *moe;
    }
    blocks_.emplace_back(spec, d_model_, layer, store, router, rope.of(spec.attention.rope), rope.positions());
  }
  SY_ASSERT(!moe_ || !moe_->router.balanced_together || moe_layers() == count_moe(specs),
            "one load-balance loss of {} layers, of which a stage has {}", count_moe(specs), moe_layers());
  if (layers.end == std::ssize(specs)) {
    final_norm_.emplace(final_norm_spec(config).desc(), store, "final_norm");
    head_.emplace(config, store, output_weight(store), store.box("embedding.weight").begin[0]);
  }
}

View Stage::forward(const Device& device, Slot& slot, View x) const {
  Pass pass{device, slot.batch, slot.saved};
  if (embedding_) {
    store_.need(embedding_part);
    x = embedding_->forward(pass, slot.embedding);
  }
  slot.blocks.resize(blocks_.size());
  if (moe_) slot.balance = make_balance(pass, moe_layers(), moe_->experts);
  Index moe = 0;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    store_.need(part_of_layer(first_layer_ + static_cast<Index>(i)));
    if (blocks_[i].is_moe()) pass.balance = slot.balance.layer(moe++);
    slot.inputs.push_back(x);
    if (slot.cache) pass.cache = slot.cache->layer(static_cast<Index>(i));
    const View y = pass.keep(x.shape());
    // Frees the activations that backward recomputes or does not need.
    std::optional<Arena::Scope> forgotten;
    if (recompute_ || slot.cache) forgotten.emplace(slot.saved);
    blocks_[i].forward(pass, x, y, slot.blocks[i], slot.report.observer);
    x = y;
  }
  slot.last = x;
  if (final_norm_) {
    store_.need(head_part());
    slot.normed = pass.keep(x.shape());
    slot.moments = slot.saved.f32({x.dim(0), 2});
    final_norm_->forward(device, x, slot.normed, slot.moments);
  }
  // This comes after the last wait for new weights. Its all-gather would wait for all of them.
  if (moe_ && !slot.batch.generation) balance(pass, moe_->router, slot.balance, slot.report.layers);
  return final_norm_ ? slot.normed : slot.last;
}

void Stage::backward(const Device& device, Slot& slot, View d, const BackwardProgress& progress) const {
  Pass pass{device, slot.batch, slot.saved};
  if (head_) {
    const Arena::Scope scope(device.scratch);
    const View dnormed = device.temp(d.shape());
    head_->loss(device, slot.batch, slot.normed, dnormed, slot.report.loss);
    device.backend.fill(d, 0);
    final_norm_->backward(device, dnormed, slot.last, slot.moments, d);
    if (progress.part_done) progress.part_done(head_part());
  }
  if (progress.tokens_sent) pass.tokens_sent = &progress.tokens_sent;
  Index moe = moe_layers();
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const Arena::Scope scope(slot.saved);
    if (blocks_[i].is_moe()) pass.balance = slot.balance.layer(--moe);
    if (recompute_) {  // the observer has already seen this pass
      const View output = i + 1 < blocks_.size() ? slot.inputs[i + 1] : slot.last;
      blocks_[i].forward(pass, slot.inputs[i], output, slot.blocks[i], nullptr);
    }
    blocks_[i].backward(pass, d, slot.blocks[i]);
    if (progress.part_done) progress.part_done(part_of_layer(first_layer_ + static_cast<Index>(i)));
  }
  if (!embedding_) return;
  embedding_->backward(device, slot.batch, slot.embedding, d);
  if (progress.part_done) progress.part_done(embedding_part);
}

void Stage::loss(const Device& device, const Slot& slot) const {
  head_->loss(device, slot.batch, slot.normed, {}, slot.report.loss);
}

std::vector<float> Stage::logits(const Device& device, const Slot& slot, Range tokens, Index vocab) const {
  const Arena::Scope scope(device.scratch);
  const ConstView x = gather_tokens(device, device.scratch, slot.normed);
  return head_->logits(device, x.rows(tokens.begin, tokens.size()), vocab);
}

std::vector<CacheSpec> Stage::cache_specs() const {
  std::vector<CacheSpec> specs;
  for (const Block& block : blocks_) specs.push_back(block.cache_spec());
  return specs;
}

}  // namespace sy
