#include "src/model/indexer.h"

#include <cmath>

#include "kernels/ops/attention.h"

namespace sy {
namespace {

// LayerNorm of DeepSeek's models, whatever norm the model has.
constexpr NormDesc key_norm{NormKind::layernorm, 1e-6f};

}  // namespace

Indexer::Indexer(const IndexerSpec& spec, ParamStore& store, const std::string& prefix, const RopeTable* rope_table)
    : spec_(spec),
      rope_table_(rope_table),
      q_(store, prefix + "q"),
      k_(store, prefix + "k"),
      head_weights_(store, prefix + "head_weights"),
      k_norm_(key_norm, store, prefix + "k_norm") {}

void Indexer::forward(const LayerContext& layer, ConstView x, ConstView query_input, const LayerCache& cache,
                      Saved& s) const {
  const ExecutionContext& context = layer.context;
  const Index B = layer.stream.sequences, S = layer.stream.seq_len, T = x.dim(0), H = spec_.heads, w = spec_.head_dim;
  const bool selects = spec_.topk > 0 && (cache ? cache.keys.dim(1) : S) > spec_.topk;
  const bool trains = !layer.batch.generation && !layer.batch.evaluation;
  s.selected = {};
  if (!selects && !trains) return;
  s.q = layer.save({T, H, w});
  s.weights = layer.save({T, H});
  s.key_input = layer.save({T, w});
  s.moments = layer.saved.f32({T, 2});
  const View keys = layer.save({T, w});
  q_.forward(context, query_input, s.q);
  rotate(layer, s.q, false);
  head_weights_.forward(context, x, s.weights);
  k_.forward(context, x, s.key_input);
  k_norm_.forward(layer, s.key_input, keys, s.moments);
  rotate(layer, keys.reshape({T, 1, w}), false);
  s.keys = gather_tokens(context, layer.saved, keys).reshape({B, S, w});
  if (!selects) return;
  if (cache)
    run(context.device,
        ops::KvCacheAppend{.x = s.keys.reshape({B, S, 1, w}), .offsets = cache.offsets, .y = cache.index_keys});
  const View own = layer.saved.take({T, spec_.topk}, DType::i32);
  run(context.device, ops::TopkKeys{.scores = scores(layer, cache, s), .selected = own});
  s.selected = gather_tokens(context, layer.saved, own).reshape({B, S, spec_.topk});
}

void Indexer::backward(const LayerContext& layer, ConstView x, ConstView query_input, ConstHeads q, ConstHeads k,
                       ConstView lse, const AttentionDesc& desc, const Saved& s) {
  const ExecutionContext& context = layer.context;
  Device& b = context.device;
  const Arena::Scope scope(context.scratch);
  const Index B = layer.stream.sequences, S = layer.stream.seq_len, T = x.dim(0), H = spec_.heads, w = spec_.head_dim;
  const Index n = s.selected ? s.selected.dim(2) : S;
  const View dq = context.temp({T, H, w}), dweights = context.temp({T, H}), dk = context.temp({T, w}),
             dkey_input = context.temp({T, w});
  {
    const Arena::Scope of_scores(context.scratch);
    const View sums = context.scratch.f32({B * S, n});
    run(b, ops::AttentionKeySums{.q = q, .k = k, .lse = lse, .desc = desc, .sums = sums});
    View own = sums;  // attention weights of the rank's own queries, then gradients of their scores
    if (context.mesh.tp->size() > 1) {
      own = context.scratch.f32({T, n});
      reduce_scatter_tokens(context, sums, own);
    }
    const ConstView selected = s.selected ? context.own_tokens(s.selected.reshape({B * S, n})) : ConstView();
    const IndexScores of_queries = scores(layer, {}, s);
    run(b, ops::IndexerLoss{.scores = of_queries,
                            .selected = selected,
                            .attention = own,
                            .factor = spec_.loss_weight / static_cast<float>(layer.step_tokens()),
                            .dscores = own,
                            .loss = layer.indexer_loss});
    sum_tokens(context, dk, [&](View partial) {
      run(b, ops::IndexerBackward{.scores = of_queries,
                                  .selected = selected,
                                  .dscores = own,
                                  .dq = dq,
                                  .dweights = dweights,
                                  .dk = partial.reshape({B, S, w})});
    });
  }
  rotate(layer, dq, true);
  rotate(layer, dk.reshape({T, 1, w}), true);
  q_.backward_weight(context, dq, query_input);
  head_weights_.backward_weight(context, dweights, x);
  k_norm_.backward(layer, dk, s.key_input, s.moments, dkey_input);
  k_.backward_weight(context, dkey_input, x);
}

IndexScores Indexer::scores(const LayerContext& layer, const LayerCache& cache, const Saved& s) const {
  const Index B = layer.stream.sequences, w = spec_.head_dim, T = s.q.dim(0);
  return {.q = s.q,
          .weights = s.weights,
          .k = cache ? cache.index_keys.reshape({B, cache.index_keys.dim(1), w}) : s.keys,
          .queries = layer.stream.seq_len,
          .first = layer.context.mesh.coord.tp * T,
          .mask = {.document_start = layer.stream.document_start, .query_offsets = cache.offsets},
          .scale = 1 / std::sqrt(static_cast<float>(spec_.heads * w))};
}

}  // namespace sy
