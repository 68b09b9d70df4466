#include "src/model/engine.h"

namespace sy {

Engine::Engine(const Config& config, Index vocab, std::unique_ptr<Backend> backend, Mesh mesh, bool training,
               Index arena_bytes)
    : config_(config),
      vocab_(vocab),
      backend_(std::move(backend)),
      mesh_(on_backend(std::move(mesh), *backend_)),
      store_(*backend_, param_specs(config, vocab), mesh_.layout, mesh_.coord, training, config.dtype()),
      block_(arena_bytes > 0 ? std::make_unique<FixedBlock>(backend_->allocate(arena_bytes), arena_bytes) : nullptr),
      saved_(make_arena(End::low)),
      scratch_(make_arena(End::high)) {
  SY_ASSERT(vocab >= mesh_.layout.tp, "a vocabulary of {} over {} ranks", vocab, mesh_.layout.tp);
  const std::vector<BlockSpec> blocks = block_specs(config);
  const std::optional<RopeSpec>& rope = blocks.front().attention.rope;
  for (const BlockSpec& block : blocks) SY_ASSERT(block.attention.rope == rope, "layers rotate in two ways");
  if (rope) {
    const std::vector<float> table = rope_table(*rope, config.model.seq_len);
    rope_table_ = backend_->tensor({config.model.seq_len, rope->rotated / 2, 2});
    backend_->to_device(table.data(), rope_table_);
  }
  const Index moe_layers = count_moe(blocks), E = config.moe.experts;
  if (config.moe.bias_rate > 0 && moe_layers > 0) router_bias_ = backend_->tensor({moe_layers, E});
  statistics_ = backend_->tensor({moe_layers * RouterSums{E}.size() + 2}, DType::f64);
  model_ = std::make_unique<Transformer>(config, store_, router_bias_.view());
}

std::vector<float> Engine::router_bias() const {
  const View bias = router_bias_;
  std::vector<float> host(bias ? bias.elements() : 0);
  if (bias) backend_->to_host(bias, host.data());
  return host;
}

void Engine::set_router_bias(const std::vector<float>& bias) {
  const View device = router_bias_;
  if (!device) return;
  if (static_cast<Index>(bias.size()) != device.elements())
    bad_input("the checkpoint has {} selection biases for {} experts of all layers: use another checkpoint",
              bias.size(), device.elements());
  backend_->to_device(bias.data(), device);
}

Arena Engine::make_arena(End end) {
  return block_ ? Arena(*block_, end) : Arena([this](Index bytes) { return backend_->allocate(bytes); });
}

StatisticsView Engine::statistics() const {
  const Index layers = model_->moe_layers(), width = RouterSums{config_.moe.experts}.size();
  const View all = statistics_;
  return {layers > 0 ? all.rows(0, layers * width).reshape({layers, width}) : View{}, all.rows(layers * width, 2)};
}

Statistics Engine::take_statistics() {
  const Index E = config_.moe.experts;
  std::vector<double> host(statistics_.shape().elements());
  backend_->to_host(statistics_, host.data());
  backend_->fill(statistics_, 0);
  Statistics s;
  const double* at = host.data();
  const RouterSums sums{E};
  for (Index layer = 0; layer < model_->moe_layers(); ++layer, at += sums.size()) {
    const double *routed = at + sums.routed(), *dropped = at + sums.dropped(), *probability = at + sums.probability();
    const double* loss = at + sums.loss();
    s.layers.push_back(
        {{routed, routed + E}, {dropped, dropped + E}, {probability, probability + E}, loss[0], loss[1]});
  }
  s.loss_sum = at[0];
  s.lse_square_sum = at[1];
  return s;
}

template <class Run>
auto Engine::with_context(const Batch& batch, bool dropless, Run run) {
  const Index T = batch.sequences * batch.seq_len;
  SY_ASSERT(static_cast<Index>(batch.ids.size()) == T, "{} ids for {} tokens", batch.ids.size(), T);
  const Arena::Scope scope(scratch_);
  std::vector<std::int32_t> host_positions(T);
  for (Index i = 0; i < T; ++i) host_positions[i] = static_cast<std::int32_t>(i % batch.seq_len);
  const View positions = scratch_.i32({T}), ids = scratch_.i32({T}), targets = scratch_.i32({T});
  backend_->to_device(host_positions.data(), positions);
  backend_->to_device(batch.ids.data(), ids);
  if (!batch.targets.empty()) backend_->to_device(batch.targets.data(), targets);
  const Context ctx{*backend_,
                    saved_,
                    scratch_,
                    mesh_,
                    config_.dtype(),
                    batch.sequences,
                    batch.seq_len,
                    batch.global_tokens,
                    batch.global_sequences,
                    batch.micro_batches,
                    dropless,
                    positions,
                    rope_table_,
                    statistics(),
                    observer_ ? &observer_ : nullptr};
  return run(ctx, ids, targets);
}

void Engine::train(const Batch& batch, const Transformer::LayerDone& layer_done) {
  with_context(batch, false, [&](const Context& ctx, View ids, View targets) {
    const auto pass = [&] { model_->train(ctx, ids, targets, layer_done); };
    // Where memory is one block, and no expert's rows decide on sizes and addresses, a pass is always the same.
    if (!block_ || model_->moe_layers() > 0) return pass();
    backend_->repeated(fmt::format("{} of {} x {} tokens of {}", layer_done ? "last pass" : "pass", batch.sequences,
                                   batch.seq_len, batch.global_tokens),
                       pass);
  });
}

void Engine::evaluate(const Batch& batch, bool dropless) {
  with_context(batch, dropless,
               [&](const Context& ctx, View ids, View targets) { model_->evaluate(ctx, ids, targets); });
}

std::vector<float> Engine::next_logits(std::span<const std::int32_t> ids) {
  const Batch batch{1, static_cast<Index>(ids.size()), ids, {}};
  return with_context(batch, true, [&](const Context& ctx, View device_ids, View) {
    const View logits = ctx.scratch.f32({vocab_});
    model_->next_logits(ctx, device_ids, logits);
    std::vector<float> host(vocab_);
    backend_->to_host(logits, host.data());
    return host;
  });
}

}  // namespace sy
