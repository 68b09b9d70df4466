#include "src/model/latent_attention.h"

namespace sy {

Latent::Latent(ParamStore& store, const std::string& name, Index d_model, float eps)
    : width_(store.get(name + "_down.weight").weight.dim(0)),
      down_(store, store.get(name + "_down.weight"), d_model),
      norm_({NormKind::rmsnorm, eps}, store, name + "_latent_norm") {}

void Latent::forward(const Pass& pass, ConstView x, Saved& s) const {
  s.low = pass.keep({x.dim(0), width_});
  s.moments = pass.saved.f32({x.dim(0), 2});
  const View normed = pass.keep(s.low.shape());
  down_.forward(pass.device, x, s.low);
  norm_.forward(pass.device, s.low, normed, s.moments);
  s.all = gather_tokens(pass.device, pass.saved, normed);
}

void Latent::backward(const Pass& pass, const std::function<void(View)>& by_latents, ConstView x, const Saved& s,
                      View dx, bool accumulate) const {
  const Device& device = pass.device;
  const Arena::Scope scope(device.scratch);
  const View dnormed = device.temp(s.low.shape()), dlow = device.temp(s.low.shape());
  sum_tokens(device, dnormed, by_latents);
  device.backend.fill(dlow, 0);
  norm_.backward(device, dnormed, s.low, s.moments, dlow);
  down_.backward_weight(device, dlow, x);
  down_.backward_input(device, dlow, dx, accumulate);
}

LatentAttention::LatentAttention(const AttentionSpec& spec, Index d_model, ParamStore& store, const std::string& prefix,
                                 const RopeTable* rope_table, Index positions)
    : rope_table_(rope_table),
      heads_(store.get(prefix + "q.weight").weight.dim(0)),
      rope_(spec.latent->rope),
      own_(spec.key_width - rope_),
      value_(spec.value_width),
      scores_(spec, store, prefix, positions),
      kv_latent_(store, prefix + "kv", d_model, spec.latent->eps),
      q_(store, store.get(prefix + "q.weight"), spec.latent->q > 0 ? spec.latent->q : d_model),
      k_rope_(store, store.get(prefix + "k_rope.weight"), d_model),
      k_(store, store.get(prefix + "k.weight"), spec.latent->kv),
      v_(store, store.get(prefix + "v.weight"), spec.latent->kv),
      out_(store, store.get(prefix + "out.weight"), heads_ * value_),
      k_up_(store.get(prefix + "k.weight").weight),
      v_up_(store.get(prefix + "v.weight").weight) {
  SY_ASSERT(rope_table ? rope_table->spec == spec.rope : !spec.rope, "another table");
  SY_ASSERT(spec.kv_heads == spec.heads && !spec.qk_norm && !spec.qkv_bias, "{} kv heads of {}, or what latents lack",
            spec.kv_heads, spec.heads);
  if (spec.rope) pairs_ = spec.rope->pairs;
  if (spec.latent->q > 0) q_latent_.emplace(store, prefix + "q", d_model, spec.latent->eps);
}

void LatentAttention::forward(const Pass& pass, ConstView x, Output to, Saved& s) const {
  const Device& device = pass.device;
  const Index B = pass.batch.sequences, S = pass.batch.seq_len, T = B * S;
  s.x = x;
  kv_latent_.forward(pass, x, s.kv_latent);
  if (q_latent_) q_latent_->forward(pass, x, s.q_latent);
  s.queries_of = q_latent_ ? s.q_latent.all : gather_tokens(device, pass.saved, x);
  s.q = pass.keep({B, S, heads_, rope_ + own_});
  s.out = pass.keep({B, S, heads_, value_});
  s.lse = pass.saved.f32({B, heads_, S});

  q_.forward(device, s.queries_of, s.q.reshape({T, heads_ * (rope_ + own_)}));
  rotate(device, s.q.reshape({T, heads_, rope_ + own_}), pass.batch.rope_rows, false);
  {
    const Arena::Scope scope(device.scratch);
    const View shared = device.temp({x.dim(0), rope_});
    k_rope_.forward(device, x, shared);
    rotate(device, shared.reshape({x.dim(0), 1, rope_}), device.own_tokens(pass.batch.rope_rows), false);
    const ConstView all = gather_tokens(device, device.scratch, shared).reshape({B, S, 1, rope_});
    pass.cache ? attend_to_cache(pass, all, s) : attend(pass, all, s);
  }
  out_.forward_sum(device, s.out.reshape({T, heads_ * value_}), to);
}

void LatentAttention::attend(const Pass& pass, ConstView shared, Saved& s) const {
  const Device& device = pass.device;
  const Arena::Scope scope(device.scratch);
  const Index B = pass.batch.sequences, S = pass.batch.seq_len, T = B * S;
  s.k = pass.keep(s.q.shape());
  s.v = pass.keep(s.out.shape());
  const View own = device.temp({B, S, heads_, own_});
  k_.forward(device, s.kv_latent.all, own.reshape({T, heads_ * own_}));
  v_.forward(device, s.kv_latent.all, s.v.reshape({T, heads_ * value_}));
  device.backend.copy_heads(shared, Heads(s.k).columns(0, rope_));
  device.backend.copy_heads(own, Heads(s.k).columns(rope_, own_));
  scores_.forward(device, s.q, s.k, s.v, s.out, s.lse);
}

// A query-key pair costs 2 (r + 2 c) FLOPs per head. With keys and values computed again from all
// latents, it would cost 2 (kw + vw), plus 2 c (kw - r + vw) per latent and head. With DeepSeek's
// widths that pays off from 171 queries per pass. It is not implemented, because generation
// computes a prompt 256 tokens at a time.
void LatentAttention::attend_to_cache(const Pass& pass, ConstView shared, Saved& s) const {
  const Device& device = pass.device;
  Backend& b = device.backend;
  const Arena::Scope scope(device.scratch);
  const Index B = pass.batch.sequences, S = pass.batch.seq_len, c = kv_latent_.width();
  const Heads keys = pass.cache.keys, q = s.q;
  b.append_heads(shared, pass.cache.offsets, keys.columns(0, rope_));
  b.append_heads(s.kv_latent.all.reshape({B, S, 1, c}), pass.cache.offsets, keys.columns(rope_, c));

  const Heads queries = device.temp({B, S, heads_, rope_ + c});
  const View out = device.temp({B, S, heads_, c});
  b.copy_heads(q.columns(0, rope_), queries.columns(0, rope_));
  b.heads_gemm(WeightUse::input, q.columns(rope_, own_), k_up_, queries.columns(rope_, c));
  scores_.forward(device, queries, keys, keys.columns(rope_, c), out, s.lse, pass.cache.offsets);
  b.heads_gemm(WeightUse::output, ConstView(out), v_up_, s.out);
}

void LatentAttention::backward(const Pass& pass, ConstView dy, const Saved& s, View dx) const {
  const Device& device = pass.device;
  Backend& b = device.backend;
  const Arena::Scope scope(device.scratch);
  const Index B = pass.batch.sequences, S = pass.batch.seq_len, T = B * S, width = rope_ + own_;
  dy = gather_tokens(device, device.scratch, dy);
  const View dout = device.temp(s.out.shape());
  out_.backward_input(device, dy, dout.reshape({T, heads_ * value_}));
  out_.backward_weight(device, dy, s.out.reshape({T, heads_ * value_}));
  const View dq = device.temp(s.q.shape()), dk = device.temp(s.k.shape()), dv = device.temp(s.v.shape());
  scores_.backward(device, dout, s.q, s.k, s.v, s.out, s.lse, dq, dk, dv);

  // The first of these sets dx; the others add to it.
  const View dq_rows = dq.reshape({T, heads_ * width});
  rotate(device, dq.reshape({T, heads_, width}), pass.batch.rope_rows, true);
  q_.backward_weight(device, dq_rows, s.queries_of);
  const auto by_queries_of = [&](View partial) { q_.backward_input(device, dq_rows, partial); };
  if (q_latent_)
    q_latent_->backward(pass, by_queries_of, s.x, s.q_latent, dx, false);
  else
    sum_tokens(device, dx, by_queries_of);

  const View dk_own = device.temp({B, S, heads_, own_});
  b.copy_heads(Heads(dk).columns(rope_, own_), dk_own);
  const ConstView dk_rows = dk_own.reshape({T, heads_ * own_}), dv_rows = dv.reshape({T, heads_ * value_});
  k_.backward_weight(device, dk_rows, s.kv_latent.all);
  v_.backward_weight(device, dv_rows, s.kv_latent.all);
  const auto by_kv_latents = [&](View partial) {
    k_.backward_input(device, dk_rows, partial);
    v_.backward_input(device, dv_rows, partial, true);
  };
  kv_latent_.backward(pass, by_kv_latents, s.x, s.kv_latent, dx, true);

  const View dshared = device.temp({s.x.dim(0), rope_});
  sum_tokens(device, dshared, [&](View partial) {
    b.sum_heads(Heads(dk).columns(0, rope_), partial.reshape({B, S, 1, rope_}));
  });
  rotate(device, dshared.reshape({s.x.dim(0), 1, rope_}), device.own_tokens(pass.batch.rope_rows), true);
  k_rope_.backward_weight(device, dshared, s.x);
  k_rope_.backward_input(device, dshared, dx, true);
}

void LatentAttention::rotate(const Device& device, View x, ConstView rope_rows, bool inverse) const {
  if (rope_table_) device.backend.rope(x, x.dim(1), rope_rows, rope_table_->rows, inverse, pairs_);
}

}  // namespace sy
