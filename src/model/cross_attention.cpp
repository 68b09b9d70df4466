#include "src/model/cross_attention.h"

#include "kernels/ops/attention.h"
#include "kernels/ops/elementwise.h"

namespace sy {

CrossAttention::CrossAttention(const CrossAttentionSpec& spec, const SublayerContext& context,
                               const std::string& prefix)
    : cache_index_(context.counts.caches++),
      heads_(context.store.get(prefix + "q.weight").weight.dim(0)),
      kv_heads_(context.store.get(prefix + "k.weight").weight.dim(0)),
      head_dim_(spec.key_width),
      core_attention_(spec, context.store, prefix, context.rope.positions()),
      q_(context.store, prefix + "q"),
      kv_(context.store, prefix + "k", 2),
      out_(context.store, prefix + "out") {
  SY_ASSERT(spec.value_width == spec.key_width && !spec.causal && !spec.rope, "cross-attention with positions");
}

void CrossAttention::recompute(const LayerContext& layer, ConstView x, Saved& s) const {
  if (layer.recompute != Recompute::norms) return;
  s.x = gather_tokens(layer.context, layer.inputs(), x);
  s.encoded = gather_tokens(layer.context, layer.inputs(), layer.encoder().output);
}

void CrossAttention::attend(const LayerContext& layer, ConstView x, Saved& s) const {
  const ExecutionContext& context = layer.context;
  const Index B = layer.stream.sequences, S = layer.stream.seq_len;
  s.x = gather_tokens(context, layer.inputs(), x);
  s.q = layer.save({B, S, heads_, head_dim_});
  s.out = layer.save({B, S, heads_, head_dim_});
  s.lse = layer.saved.f32({B, heads_, S});
  q_.forward(context, s.x, s.q);

  const LayerCache cache = layer.cache_entry(cache_index_);
  ConstHeads k, v;
  AttentionMask by_sequence;
  if (layer.has_encoder()) {
    const TokenStream& encoder = layer.encoder();
    const Index Se = encoder.seq_len;
    s.encoded = gather_tokens(context, layer.inputs(), encoder.output);
    s.kv = layer.save({B, Se, 2 * kv_heads_, head_dim_});
    kv_.forward(context, s.encoded, s.kv);
    k = heads_of(s.kv, 0, kv_heads_);
    v = heads_of(s.kv, kv_heads_, kv_heads_);
    by_sequence.key_lengths = encoder.lengths;
    if (cache && B > 0) {
      const View first = context.scratch.i32({B});
      run(context.device, ops::Fill{.x = first, .value = 0});
      run(context.device, ops::KvCacheAppend{.x = k, .offsets = first, .y = cache.keys});
      run(context.device, ops::KvCacheAppend{.x = v, .offsets = first, .y = cache.values});
    }
  } else {
    k = Heads(cache.keys);
    v = Heads(cache.values);
    by_sequence.key_lengths = cache.offsets;
  }
  core_attention_.forward(context, s.q, k, v, s.out, s.lse, by_sequence);
}

void CrossAttention::backward(const LayerContext& layer, ConstView dy, const Saved& s, View dx) {
  const ExecutionContext& context = layer.context;
  const TokenStream& encoder = layer.encoder();
  const Arena::Scope scope(context.scratch);
  const View dout = out_.backward_sum(context, dy, s.out);
  const View dq = context.temp(s.q.shape()), dkv = context.temp(s.kv.shape());
  const auto [k, v] = split_heads(s.kv, kv_heads_, kv_heads_);
  const auto [dk, dv] = split_heads(dkv, kv_heads_, kv_heads_);
  core_attention_.backward(context, dout, s.q, k, v, s.out, s.lse, dq, dk, dv, {.key_lengths = encoder.lengths});
  q_.backward_params(context, dq, s.x);
  q_.backward_input_sum(context, dq, dx);
  kv_.backward_params(context, dkv, s.encoded);
  const View dencoded = context.temp(encoder.doutput.shape());
  kv_.backward_input_sum(context, dkv, dencoded);
  run(context.device, ops::Add{.x = dencoded, .y = encoder.doutput});
}

}  // namespace sy
