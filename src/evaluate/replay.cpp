#include "src/evaluate/replay.h"

#include <algorithm>

#include "src/data/masking.h"

namespace sy {

Index ReplayBatch::counted_targets() const {
  return std::ranges::count_if(targets, [](std::int32_t id) { return id >= 0; });
}

void for_replay_batches(const Dataset& dataset, const Config& config, const ReplayOptions& options,
                        const std::function<void(const ReplayBatch&)>& visit,
                        const std::function<void(Index, Index)>& progress) {
  const Index S = config.model.seq_len;
  std::vector<EvalStream> streams;
  std::vector<Index> windows;
  Index total = 0, done = 0;
  const std::optional<TokenMasking> masking = training_masking(config, dataset);
  for (std::size_t d = 0; d < dataset.domains().size(); ++d) {
    streams.emplace_back(dataset, static_cast<int>(d), S, 0, config.data, masking ? &*masking : nullptr, nullptr,
                         config.has_visible_prefix());
    const Index all = streams.back().windows();
    total += windows.emplace_back(options.max_windows > 0 ? std::min(options.max_windows, all) : all);
  }
  SampleBatch one(S, config.data, 1, config.has_visible_prefix());
  for (std::size_t d = 0; d < streams.size(); ++d) {
    ReplayBatch batch;
    const auto flush = [&] {
      if (batch.sequences == 0) return;
      visit(batch);
      done += batch.sequences;
      if (progress) progress(done, total);
      batch = {};
    };
    for (Index i = 0; i < windows[d]; ++i) {
      const Index window = streams[d].spread(i, windows[d]), length = streams[d].length(window);
      if (batch.sequences == options.windows_per_pass || (batch.sequences > 0 && batch.seq_len != length)) flush();
      streams[d].read(window, one[0]);
      batch.domain = static_cast<Index>(d);
      batch.seq_len = length;
      ++batch.sequences;
      for (const auto& [from, to] :
           {std::pair(&one.ids, &batch.ids), std::pair(&one.targets, &batch.targets),
            std::pair(&one.document_start, &batch.document_start), std::pair(&one.prefix_end, &batch.prefix_end)})
        to->insert(to->end(), from->begin(), from->begin() + std::min(length, std::ssize(*from)));
    }
    flush();
  }
}

ReplayResult replay(Engine& engine, const ReplayBatch& batch, bool dropless, bool predict) {
  SY_ASSERT(engine.mesh().layout.ranks == 1, "a replay on {} ranks", engine.mesh().layout.ranks);
  ReplayResult out;
  engine.set_routing_hook([&](const RoutingView& view) {
    LayerChoices& layer = out.layers.emplace_back();
    Device& b = engine.device();
    std::vector<std::int32_t> dispatch_mask(static_cast<std::size_t>(view.dispatch_mask.elements()));
    layer.experts.resize(dispatch_mask.size());
    layer.weights.resize(dispatch_mask.size());
    b.to_host(view.experts, layer.experts.data());
    b.to_host(view.weights, layer.weights.data());
    b.to_host(view.dispatch_mask, dispatch_mask.data());
    layer.dropped = std::count(dispatch_mask.begin(), dispatch_mask.end(), 0);
  });
  engine.take_statistics();
  const Engine::MicroBatch tokens{.sequences = batch.sequences,
                                  .seq_len = batch.seq_len,
                                  .ids = batch.ids,
                                  .targets = batch.targets,
                                  .document_start = batch.document_start,
                                  .prefix_end = batch.prefix_end};
  if (predict)
    out.predicted = engine.predict(tokens, dropless);
  else
    engine.evaluate(tokens, dropless);
  out.nats = engine.take_statistics().loss_sum;
  engine.set_routing_hook({});
  return out;
}

}  // namespace sy
