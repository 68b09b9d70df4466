#include "src/model/engine.h"

namespace sy {

Engine::Engine(const Config& config, Index vocab, std::unique_ptr<Backend> backend, Mesh mesh, bool training)
    : config_(config),
      vocab_(vocab),
      backend_(std::move(backend)),
      mesh_(std::move(mesh)),
      store_(*backend_, param_specs(config, vocab), mesh_.layout, mesh_.coord, training),
      saved_([this](Index bytes) { return backend_->allocate(bytes); }),
      scratch_([this](Index bytes) { return backend_->allocate(bytes); }) {
  SY_ASSERT(vocab >= mesh_.layout.tp, "a vocabulary of {} over {} ranks", vocab, mesh_.layout.tp);
  if (config.model.position == Position::rope) {
    const std::vector<float> table = rope_table(config, config.model.seq_len);
    const Index pairs = static_cast<Index>(table.size()) / 2 / config.model.seq_len;
    rope_table_ = backend_->tensor({config.model.seq_len, pairs, 2});
    backend_->to_device(table.data(), rope_table_);
  }
  Index moe_layers = 0;
  for (Index layer = 0; layer < config.model.layers; ++layer) moe_layers += config.is_moe(layer);
  if (config.moe.bias_rate > 0 && moe_layers > 0) router_bias_ = backend_->tensor({moe_layers, config.moe.experts});
  model_ = std::make_unique<Transformer>(config, store_, mesh_, router_bias_.view());
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
  SY_ASSERT(static_cast<Index>(bias.size()) == device.elements(), "{} biases for {}", bias.size(), device.elements());
  backend_->to_device(bias.data(), device);
}

std::vector<RouterStats> Engine::make_stats() const {
  std::vector<RouterStats> stats(model_->moe_layers());
  for (RouterStats& s : stats) s.reset(config_.moe.experts);
  return stats;
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
                    batch.sequences,
                    batch.seq_len,
                    batch.global_tokens,
                    batch.global_sequences,
                    batch.micro_batches,
                    dropless,
                    positions,
                    rope_table_,
                    observer_ ? &observer_ : nullptr};
  return run(ctx, ids, targets);
}

PassResult Engine::train(const Batch& batch, std::vector<RouterStats>& stats) {
  return with_context(batch, false, [&](const Context& ctx, View ids, View targets) {
    return model_->train(ctx, ids, targets, stats);
  });
}

PassResult Engine::evaluate(const Batch& batch, bool dropless, std::vector<RouterStats>& stats) {
  return with_context(batch, dropless, [&](const Context& ctx, View ids, View targets) {
    return model_->evaluate(ctx, ids, targets, stats);
  });
}

std::vector<float> Engine::next_logits(std::span<const std::int32_t> ids) {
  const Batch batch{1, static_cast<Index>(ids.size()), ids, {}};
  return with_context(batch, true, [&](const Context& ctx, View device_ids, View) {
    const View logits = ctx.scratch.f32({vocab_});
    std::vector<RouterStats> stats = make_stats();
    model_->next_logits(ctx, device_ids, logits, stats);
    std::vector<float> host(vocab_);
    backend_->to_host(logits, host.data());
    return host;
  });
}

}  // namespace sy
