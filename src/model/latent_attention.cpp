#include "src/model/latent_attention.h"

#include "kernels/ops/attention.h"
#include "kernels/ops/heads.h"

namespace sy {

Latent::Latent(ParamStore& store, const std::string& name, float eps)
    : down_(store, name + "_down"), norm_({NormKind::rmsnorm, eps}, store, name + "_latent_norm") {}

void Latent::forward(const LayerContext& layer, ConstView x, Saved& s) const {
  s.compressed = layer.save({x.dim(0), width()});
  s.moments = layer.saved.f32({x.dim(0), 2});
  down_.forward(layer.context, x, s.compressed);
  normalize(layer, s);
}

void Latent::normalize(const LayerContext& layer, Saved& s) const {
  const View normed = layer.inputs().take(s.compressed.shape(), layer.context.dtype);
  norm_.forward(layer, s.compressed, normed, s.moments);
  s.gathered = gather_tokens(layer.context, layer.inputs(), normed);
}

void Latent::backward(const LayerContext& layer, const std::function<void(View)>& latent_gradient, ConstView x,
                      const Saved& s, View dx, bool accumulate) {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  const View dnormed = context.temp(s.compressed.shape()), dcompressed = context.temp(s.compressed.shape());
  sum_tokens(context, dnormed, latent_gradient);
  norm_.backward(layer, dnormed, s.compressed, s.moments, dcompressed);
  down_.backward_weight(context, dcompressed, x);
  down_.backward_input(context, dcompressed, dx, accumulate);
}

LatentAttention::LatentAttention(const LatentAttentionSpec& spec, const SublayerContext& context,
                                 const std::string& prefix)
    : cache_index_(context.counts.caches++),
      rope_table_(context.rope.of(spec.rope)),
      heads_(context.store.get(prefix + "q.weight").weight.dim(0)),
      qk_rope_dim_(spec.qk_rope_head_dim),
      qk_nope_dim_(spec.key_width - qk_rope_dim_),
      v_head_dim_(spec.value_width),
      index_width_(index_cache_elements(spec)),
      core_attention_(spec, context.store, prefix, context.rope.positions()),
      kv_latent_(context.store, prefix + "kv", spec.eps),
      q_(context.store, prefix + "q"),
      k_rope_(context.store, prefix + "k_rope"),
      k_(context.store, prefix + "k"),
      v_(context.store, prefix + "v"),
      out_(context.store, prefix + "out"),
      k_up_(context.store.get(prefix + "k.weight").weight),
      v_up_(context.store.get(prefix + "v.weight").weight) {
  SY_ASSERT(rope_table_ || !spec.rope, "no table of its rotary positions");
  if (spec.indexer) indexer_.emplace(*spec.indexer, context.store, prefix + "indexer.", rope_table_);
  if (spec.q_lora_rank > 0) q_latent_.emplace(context.store, prefix + "q", spec.eps);
}

void LatentAttention::recompute(const LayerContext& layer, ConstView x, Saved& s) const {
  if (layer.recompute != Recompute::norms) return;
  s.x = x;
  kv_latent_.normalize(layer, s.kv_latent);
  if (q_latent_) q_latent_->normalize(layer, s.q_latent);
  set_query_input(layer, x, s);
}

void LatentAttention::set_query_input(const LayerContext& layer, ConstView x, Saved& s) const {
  s.query_input = q_latent_ ? s.q_latent.gathered : gather_tokens(layer.context, layer.inputs(), x);
}

void LatentAttention::attend(const LayerContext& layer, ConstView x, Saved& s) const {
  const ExecutionContext& context = layer.context;
  const Index B = layer.stream.sequences, S = layer.stream.seq_len, T = B * S;
  s.x = x;
  kv_latent_.forward(layer, x, s.kv_latent);
  if (q_latent_) q_latent_->forward(layer, x, s.q_latent);
  set_query_input(layer, x, s);
  s.q = layer.save({B, S, heads_, qk_rope_dim_ + qk_nope_dim_});
  s.out = layer.save({B, S, heads_, v_head_dim_});
  s.lse = layer.saved.f32({B, heads_, S});

  q_.forward(context, s.query_input, s.q);
  rotate(context, s.q.reshape({T, heads_, qk_rope_dim_ + qk_nope_dim_}), layer.stream.rope_rows, false);
  {
    const Arena::Scope scope(context.scratch);
    const View k_rope = context.temp({x.dim(0), qk_rope_dim_});
    k_rope_.forward(context, x, k_rope);
    rotate(context, k_rope.reshape({x.dim(0), 1, qk_rope_dim_}), context.own_tokens(layer.stream.rope_rows), false);
    const ConstView gathered = gather_tokens(context, context.scratch, k_rope).reshape({B, S, 1, qk_rope_dim_});
    const LayerCache cache = layer.cache_entry(cache_index_);
    if (indexer_) indexer_->forward(layer, x, context.own_tokens(s.query_input), cache, s.indexer);
    cache ? attend_to_cache(layer, cache, gathered, s) : attend_to_tokens(layer, gathered, s);
  }
}

void LatentAttention::attend_to_tokens(const LayerContext& layer, ConstView k_rope, Saved& s) const {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  const Index B = layer.stream.sequences, S = layer.stream.seq_len;
  s.k = layer.save(s.q.shape());
  s.v = layer.save(s.out.shape());
  const View k_nope = context.temp({B, S, heads_, qk_nope_dim_});
  k_.forward(context, s.kv_latent.gathered, k_nope);
  v_.forward(context, s.kv_latent.gathered, s.v);
  run(context.device, ops::BroadcastHeads{.x = k_rope, .y = Heads(s.k).columns(0, qk_rope_dim_)});
  run(context.device, ops::BroadcastHeads{.x = k_nope, .y = Heads(s.k).columns(qk_rope_dim_, qk_nope_dim_)});
  core_attention_.forward(context, s.q, s.k, s.v, s.out, s.lse, stream_mask(layer.stream, s.indexer.selected),
                          layer.max_logits);
}

// A query-key pair costs 2 (r + 2 c) FLOPs per head. With keys and values computed again from all
// latents, it would cost 2 (kw + vw), plus 2 c (kw - r + vw) per latent and head. With DeepSeek's
// widths that pays off from 171 queries per pass. It is not implemented, because generation
// computes a prompt 256 tokens at a time.
void LatentAttention::attend_to_cache(const LayerContext& layer, const LayerCache& cache, ConstView k_rope,
                                      Saved& s) const {
  const ExecutionContext& context = layer.context;
  Device& b = context.device;
  const Arena::Scope scope(context.scratch);
  const Index B = layer.stream.sequences, S = layer.stream.seq_len, c = kv_latent_.width();
  const ConstView offsets = cache.offsets;
  const Heads keys = cache.keys, latents = keys.columns(qk_rope_dim_, c), q = s.q;
  run(b, ops::KvCacheAppend{.x = k_rope, .offsets = offsets, .y = keys.columns(0, qk_rope_dim_)});
  run(b, ops::KvCacheAppend{.x = s.kv_latent.gathered.reshape({B, S, 1, c}), .offsets = offsets, .y = latents});

  const Heads queries = context.temp({B, S, heads_, qk_rope_dim_ + c});
  const View out = context.temp({B, S, heads_, c});
  run(b, ops::BroadcastHeads{.x = q.columns(0, qk_rope_dim_), .y = queries.columns(0, qk_rope_dim_)});
  run(b, ops::BatchedHeadGemm{.x = q.columns(qk_rope_dim_, qk_nope_dim_),
                              .w = k_up_,
                              .pass = GemmPass::dgrad,
                              .y = queries.columns(qk_rope_dim_, c)});
  core_attention_.forward(context, queries, keys, latents, out, s.lse,
                          stream_mask(layer.stream, s.indexer.selected, offsets));
  run(b, ops::BatchedHeadGemm{.x = out, .w = v_up_, .pass = GemmPass::fprop, .y = s.out});
}

void LatentAttention::backward(const LayerContext& layer, ConstView dy, const Saved& s, View dx) {
  const ExecutionContext& context = layer.context;
  Device& b = context.device;
  const Arena::Scope scope(context.scratch);
  const Index B = layer.stream.sequences, S = layer.stream.seq_len, T = B * S, width = qk_rope_dim_ + qk_nope_dim_;
  const View dout = out_.backward_sum(context, dy, s.out);
  const View dq = context.temp(s.q.shape()), dk = context.temp(s.k.shape()), dv = context.temp(s.v.shape());
  const AttentionMask by_sequence = stream_mask(layer.stream, s.indexer.selected);
  core_attention_.backward(context, dout, s.q, s.k, s.v, s.out, s.lse, dq, dk, dv, by_sequence);
  if (indexer_)
    indexer_->backward(layer, s.x, context.own_tokens(s.query_input), s.q, s.k, s.lse,
                       core_attention_.attention_desc(context, by_sequence), s.indexer);

  // The first of these sets dx; the others add to it.
  rotate(context, dq.reshape({T, heads_, width}), layer.stream.rope_rows, true);
  q_.backward_weight(context, dq, s.query_input);
  const auto query_input_gradient = [&](View partial) { q_.backward_input(context, dq, partial); };
  if (q_latent_)
    q_latent_->backward(layer, query_input_gradient, s.x, s.q_latent, dx, false);
  else
    sum_tokens(context, dx, query_input_gradient);

  const View dk_nope = context.temp({B, S, heads_, qk_nope_dim_});
  run(b, ops::BroadcastHeads{.x = Heads(dk).columns(qk_rope_dim_, qk_nope_dim_), .y = dk_nope});
  k_.backward_weight(context, dk_nope, s.kv_latent.gathered);
  v_.backward_weight(context, dv, s.kv_latent.gathered);
  const auto kv_latent_gradient = [&](View partial) {
    k_.backward_input(context, dk_nope, partial);
    v_.backward_input(context, dv, partial, true);
  };
  kv_latent_.backward(layer, kv_latent_gradient, s.x, s.kv_latent, dx, true);

  const View dk_rope = context.temp({s.x.dim(0), qk_rope_dim_});
  sum_tokens(context, dk_rope, [&](View partial) {
    run(b, ops::ReduceHeads{.x = Heads(dk).columns(0, qk_rope_dim_), .y = partial.reshape({B, S, 1, qk_rope_dim_})});
  });
  rotate(context, dk_rope.reshape({s.x.dim(0), 1, qk_rope_dim_}), context.own_tokens(layer.stream.rope_rows), true);
  k_rope_.backward_weight(context, dk_rope, s.x);
  k_rope_.backward_input(context, dk_rope, dx, true);
}

}  // namespace sy
