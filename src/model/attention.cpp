#include "src/model/attention.h"

#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"

namespace sy {

Attention::Attention(const AttentionSpec& spec, const SublayerContext& context, const std::string& prefix)
    : cache_index_(context.counts.caches++),
      rope_table_(context.rope.of(spec.rope)),
      heads_(context.store.get(prefix + "q.weight").weight.dim(0)),
      kv_heads_(context.store.get(prefix + "k.weight").weight.dim(0)),
      head_dim_(spec.key_width),
      index_width_(index_cache_elements(spec)),
      core_attention_(spec, context.store, prefix, context.rope.positions()),
      qkv_(context.store, prefix + "q", 3),
      out_(context.store, prefix + "out") {
  SY_ASSERT(spec.value_width == spec.key_width, "values of {} for keys of {}", spec.value_width, spec.key_width);
  SY_ASSERT(rope_table_ || !spec.rope, "no table of its rotary positions");
  if (spec.clip_qkv > 0) clip_ = FfnActivation{Activation::hardtanh, false, 1, spec.clip_qkv};
  if (spec.qk_norm) set_qk_norm(*spec.qk_norm, context.store, prefix, spec.heads / heads_);
  if (spec.indexer) indexer_.emplace(*spec.indexer, context.store, prefix + "indexer.", rope_table_);
  if (spec.global_projections)
    global_.emplace(spec, context.store, prefix + global_attention_name + ".", context.rope.positions());
}

void Attention::set_qk_norm(const QkNormSpec& norm, const ParamStore& store, const std::string& prefix, Index ranks) {
  norm_weight_ = store.get_fused(prefix + "q_norm.weight", 2);
  norm_after_rope_ = norm.after_rope;
  if (norm.scope == QkNormScope::head) {
    const RopePairs pairs = rope_table_ ? rope_table_->spec.pairs : RopePairs::half;
    norm_ = HeadQkNorm{heads_, kv_heads_, norm.eps, pairs, norm.offset, norm.kind, norm.weight_per_head()};
    return;
  }
  // A kv head that several ranks hold counts once per rank, both in the sums and in the number of
  // elements. The mean is therefore correct.
  const Index q = heads_ * head_dim_, k = kv_heads_ * head_dim_;
  norm_ = ProjectionQkNorm{q, k, ranks * q, ranks * k, norm.eps, norm.offset};
  norm_weight_ = norm_weight_.reshape({q + k});
}

void Attention::recompute(const LayerContext& layer, ConstView x, Saved& s) const {
  if (layer.recompute == Recompute::norms) s.x = gather_tokens(layer.context, layer.inputs(), x);
}

void Attention::attend(const LayerContext& layer, ConstView x, Saved& s) const {
  const ExecutionContext& context = layer.context;
  const Index B = layer.stream.sequences, S = layer.stream.seq_len;
  s.x = gather_tokens(context, layer.inputs(), x);
  s.qkv = layer.save({B, S, heads_ + 2 * kv_heads_, head_dim_});
  s.out = layer.save({B, S, heads_, head_dim_});
  s.lse = layer.saved.f32({B, heads_, S});

  s.unclipped = clip_ ? layer.save(s.qkv.shape()) : s.qkv;
  s.raw = norm_weight_ ? layer.save(s.qkv.shape()) : s.unclipped;
  qkv_.forward(context, s.x, s.raw);
  normalize(layer, s);
  const auto [q, new_k, new_v] = split_heads(s.qkv, heads_, kv_heads_, kv_heads_);
  ConstHeads k = new_k, v = new_v;
  const LayerCache cache = layer.cache_entry(cache_index_);
  if (cache) {
    run(context.device, ops::KvCacheAppend{.x = k, .offsets = cache.offsets, .y = cache.keys});
    run(context.device, ops::KvCacheAppend{.x = v, .offsets = cache.offsets, .y = cache.values});
    k = Heads(cache.keys);
    v = Heads(cache.values);
  }
  if (indexer_) indexer_->forward(layer, x, x, cache, s.indexer);
  core_attention_.forward(context, q, k, v, s.out, s.lse, stream_mask(layer.stream, s.indexer.selected, cache.offsets),
                          layer.max_logits);
  if (global_) global_->forward(layer, s.x, s.out, s.global);
}

void Attention::backward(const LayerContext& layer, ConstView dy, const Saved& s, View dx) {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  const View dout = out_.backward_sum(context, dy, s.out);
  GlobalAttention::Gradients global;
  if (global_) global = global_->backward(layer, s.x, dout, s.global);
  const View dqkv = context.temp(s.qkv.shape());
  const AttentionMask by_sequence = stream_mask(layer.stream, s.indexer.selected);
  const auto [q, k, v] = split_heads(s.qkv, heads_, kv_heads_, kv_heads_);
  const auto [dq, dk, dv] = split_heads(dqkv, heads_, kv_heads_, kv_heads_);
  core_attention_.backward(context, dout, q, k, v, s.out, s.lse, dq, dk, dv, by_sequence);
  if (indexer_) {
    const ConstView x = context.own_tokens(s.x);
    indexer_->backward(layer, x, x, q, k, s.lse, core_attention_.attention_desc(context, by_sequence), s.indexer);
  }
  const View draw = backward_normalize(layer, dqkv, s);
  qkv_.backward_params(context, draw, s.x);
  sum_tokens(context, dx, [&](View partial) {
    qkv_.backward_input(context, draw, partial);
    if (global_) global_->add_input_gradient(layer, global, partial);
  });
}

void Attention::normalize(const LayerContext& layer, Saved& s) const {
  Device& b = layer.context.device;
  const Index T = layer.stream.tokens(), heads = heads_ + kv_heads_, row = (heads + kv_heads_) * head_dim_;
  const Shape by_token = {T, heads + kv_heads_, head_dim_};
  if (const auto* by_head = std::get_if<HeadQkNorm>(&norm_)) {
    s.inverse = layer.saved.f32({T, heads});
    if (norm_after_rope_) rotate(layer, s.raw.reshape(by_token), false);
    return run(b, ops::HeadQkNormForward{.x = s.raw.reshape(by_token),
                                         .weight = norm_weight_.weight,
                                         .positions = norm_after_rope_ ? ConstView() : layer.stream.rope_rows,
                                         .table = norm_after_rope_ ? ConstView() : rope_rows(),
                                         .desc = *by_head,
                                         .y = s.qkv.reshape(by_token),
                                         .inverse = s.inverse});
  }
  if (const auto* projection = std::get_if<ProjectionQkNorm>(&norm_)) {
    s.squares = layer.saved.f32({T, 2});
    norm_sums(layer.context, *projection, s.raw, s.raw, s.squares);
    run(b, ops::ProjectionQkNormForward{.x = s.raw.reshape({T, row}),
                                        .weight = norm_weight_.weight,
                                        .squares = s.squares,
                                        .desc = *projection,
                                        .y = s.unclipped.reshape({T, row})});
  }
  if (clip_)
    run(b,
        ops::ActivationForward{.h = s.unclipped.reshape({T, row}), .activation = *clip_, .y = s.qkv.reshape({T, row})});
  rotate(layer, s.qkv.reshape(by_token), false);
}

View Attention::backward_normalize(const LayerContext& layer, View dqkv, const Saved& s) const {
  const ExecutionContext& context = layer.context;
  Device& b = context.device;
  const Index T = layer.stream.tokens(), heads = heads_ + kv_heads_, row = (heads + kv_heads_) * head_dim_;
  const Shape by_token = {T, heads + kv_heads_, head_dim_};
  if (const auto* by_head = std::get_if<HeadQkNorm>(&norm_)) {
    const View draw = context.temp(dqkv.shape());
    run(b, ops::HeadQkNormBackward{.dy = dqkv.reshape(by_token),
                                   .x = s.raw.reshape(by_token),
                                   .weight = norm_weight_.weight,
                                   .inverse = s.inverse,
                                   .positions = norm_after_rope_ ? ConstView() : layer.stream.rope_rows,
                                   .table = norm_after_rope_ ? ConstView() : rope_rows(),
                                   .desc = *by_head,
                                   .dx = draw.reshape(by_token),
                                   .dweight = norm_weight_.grad});
    if (norm_after_rope_) rotate(layer, draw.reshape(by_token), true);
    return draw;
  }
  const auto* projection = std::get_if<ProjectionQkNorm>(&norm_);
  View products;
  if (projection) products = context.scratch.f32({T, 2});
  // Both are rotated, which preserves the sums.
  if (projection && !clip_) norm_sums(context, *projection, dqkv, s.qkv, products);
  rotate(layer, dqkv.reshape(by_token), true);
  if (clip_) {
    const View dunclipped = context.temp(dqkv.shape());
    run(b, ops::ActivationBackward{.dy = dqkv.reshape({T, row}),
                                   .h = s.unclipped.reshape({T, row}),
                                   .activation = *clip_,
                                   .dh = dunclipped.reshape({T, row})});
    dqkv = dunclipped;
    if (projection) norm_sums(context, *projection, dqkv, s.unclipped, products);
  }
  if (!projection) return dqkv;
  const View draw = context.temp(dqkv.shape());
  run(b, ops::ProjectionQkNormBackward{.dy = dqkv.reshape({T, row}),
                                       .x = s.raw.reshape({T, row}),
                                       .weight = norm_weight_.weight,
                                       .squares = s.squares,
                                       .products = products,
                                       .desc = *projection,
                                       .dx = draw.reshape({T, row}),
                                       .dweight = norm_weight_.grad});
  return draw;
}

void Attention::norm_sums(const ExecutionContext& context, const ProjectionQkNorm& norm, ConstView a, ConstView b,
                          View sums) const {
  const Shape rows = {sums.dim(0), (heads_ + 2 * kv_heads_) * head_dim_};
  run(context.device,
      ops::ProjectionQkNormSums{.x = a.reshape(rows), .y = b.reshape(rows), .desc = norm, .sums = sums});
  if (context.mesh.tp->size() > 1) context.mesh.tp->all_reduce(sums);
}

}  // namespace sy
