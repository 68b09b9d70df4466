#include "src/model/attention.h"

namespace sy {

Attention::Attention(const AttentionSpec& spec, Index d_model, ParamStore& store, const std::string& prefix,
                     const RopeTable* rope_table, Index positions)
    : rope_table_(rope_table),
      heads_(store.get(prefix + "q.weight").weight.dim(0)),
      kv_heads_(store.get(prefix + "k.weight").weight.dim(0)),
      head_dim_(spec.key_width),
      scores_(spec, store, prefix, positions) {
  SY_ASSERT(spec.value_width == spec.key_width, "values of {} for keys of {}", spec.value_width, spec.key_width);
  SY_ASSERT(rope_table ? rope_table->spec == spec.rope : !spec.rope, "another table");
  if (spec.rope) pairs_ = spec.rope->pairs;
  const float eps = spec.qk_norm.value_or(0);
  const NormKind by_head = spec.head_layernorm ? NormKind::layernorm : NormKind::rmsnorm;
  qk_norm_ = {heads_, kv_heads_, eps, pairs_, spec.norm_offset, by_head, spec.head_layernorm};
  if (spec.qk_norm && spec.whole_qk_norm) {
    // A kv head that several ranks hold counts once per rank, both in the sums and in the number of
    // elements. The mean is therefore correct.
    const Index q = heads_ * head_dim_, k = kv_heads_ * head_dim_, ranks = spec.heads / heads_;
    whole_qk_norm_ = {q, k, ranks * q, ranks * k, eps, spec.norm_offset};
    whole_norm_ = store.get_joined(prefix + "q_norm.weight", 2);
    whole_norm_.weight = whole_norm_.weight.reshape({q + k});
    if (whole_norm_.grad) whole_norm_.grad = whole_norm_.grad.reshape({q + k});
  } else if (spec.qk_norm) {
    norm_ = store.get_joined(prefix + "q_norm.weight", 2);
  }
  qkv_.emplace(store, store.get_joined(prefix + "q.weight", 3), d_model,
               spec.qkv_bias ? store.get_joined(prefix + "q.bias", 3) : Param{});
  out_.emplace(store, store.get(prefix + "out.weight"), heads_ * head_dim_, store.find(prefix + "out.bias"));
}

void Attention::forward(const Pass& pass, ConstView x, Output to, Saved& s) const {
  const Device& device = pass.device;
  const Index B = pass.batch.sequences, S = pass.batch.seq_len, T = B * S, row = (heads_ + 2 * kv_heads_) * head_dim_;
  s.x = gather_tokens(device, pass.saved, x);
  s.qkv = pass.keep({B, S, heads_ + 2 * kv_heads_, head_dim_});
  s.out = pass.keep({B, S, heads_, head_dim_});
  s.lse = pass.saved.f32({B, heads_, S});

  s.raw = norm_ || whole_norm_ ? pass.keep(s.qkv.shape()) : s.qkv;
  qkv_->forward(device, s.x, s.raw.reshape({T, row}));
  normalize(pass, s);
  ConstHeads k = keys(s.qkv), v = values(s.qkv);
  if (const LayerCache& cache = pass.cache) {
    device.backend.append_heads(k, cache.offsets, cache.keys);
    device.backend.append_heads(v, cache.offsets, cache.values);
    k = Heads(cache.keys);
    v = Heads(cache.values);
  }
  scores_.forward(device, queries(s.qkv), k, v, s.out, s.lse, pass.cache.offsets);
  out_->forward_sum(device, s.out.reshape({T, heads_ * head_dim_}), to);
}

void Attention::backward(const Pass& pass, ConstView dy, const Saved& s, View dx) const {
  const Device& device = pass.device;
  const Arena::Scope scope(device.scratch);
  const Index T = pass.batch.tokens(), row = (heads_ + 2 * kv_heads_) * head_dim_;
  out_->backward_bias(device, dy);
  dy = gather_tokens(device, device.scratch, dy);

  const View dout = device.temp(s.out.shape());
  out_->backward_input(device, dy, dout.reshape({T, heads_ * head_dim_}));
  out_->backward_weight(device, dy, s.out.reshape({T, heads_ * head_dim_}));
  const View dqkv = device.temp(s.qkv.shape());
  scores_.backward(device, dout, queries(s.qkv), keys(s.qkv), values(s.qkv), s.out, s.lse, queries(dqkv), keys(dqkv),
                   values(dqkv));
  const View dqkv_rows = backward_normalize(pass, dqkv, s).reshape({T, row});
  qkv_->backward_weight(device, dqkv_rows, s.x);
  qkv_->backward_bias(device, dqkv_rows);
  qkv_->backward_input_sum(device, dqkv_rows, dx);
}

void Attention::normalize(const Pass& pass, Saved& s) const {
  Backend& b = pass.device.backend;
  const Index T = pass.batch.tokens(), heads = heads_ + kv_heads_, row = (heads + kv_heads_) * head_dim_;
  const Shape by_token = {T, heads + kv_heads_, head_dim_};
  if (norm_) {
    s.inverse = pass.saved.f32({T, heads});
    return b.qk_norm_forward(qk_norm_, s.raw.reshape(by_token), norm_.weight, pass.batch.rope_rows, rope_rows(),
                             s.qkv.reshape(by_token), s.inverse);
  }
  if (whole_norm_) {
    s.squares = pass.saved.f32({T, 2});
    whole_sums(pass.device, s.raw, s.raw, s.squares);
    b.whole_qk_norm_forward(whole_qk_norm_, s.raw.reshape({T, row}), whole_norm_.weight, s.squares,
                            s.qkv.reshape({T, row}));
  }
  if (rope_table_) b.rope(s.qkv.reshape(by_token), heads, pass.batch.rope_rows, rope_rows(), false, pairs_);
}

View Attention::backward_normalize(const Pass& pass, View dqkv, const Saved& s) const {
  const Device& device = pass.device;
  Backend& b = device.backend;
  const Index T = pass.batch.tokens(), heads = heads_ + kv_heads_, row = (heads + kv_heads_) * head_dim_;
  const Shape by_token = {T, heads + kv_heads_, head_dim_};
  const View draw = norm_ || whole_norm_ ? device.temp(dqkv.shape()) : dqkv;
  if (norm_) {
    b.qk_norm_backward(qk_norm_, dqkv.reshape(by_token), s.raw.reshape(by_token), norm_.weight, s.inverse,
                       pass.batch.rope_rows, rope_rows(), draw.reshape(by_token), norm_.grad);
    return draw;
  }
  View products;
  if (whole_norm_) {
    products = device.scratch.f32({T, 2});
    whole_sums(device, dqkv, s.qkv, products);  // both are rotated, which preserves the sums
  }
  if (rope_table_) b.rope(dqkv.reshape(by_token), heads, pass.batch.rope_rows, rope_rows(), true, pairs_);
  if (whole_norm_)
    b.whole_qk_norm_backward(whole_qk_norm_, dqkv.reshape({T, row}), s.raw.reshape({T, row}), whole_norm_.weight,
                             s.squares, products, draw.reshape({T, row}), whole_norm_.grad);
  return draw;
}

void Attention::whole_sums(const Device& device, ConstView a, ConstView b, View sums) const {
  const Shape rows = {sums.dim(0), (heads_ + 2 * kv_heads_) * head_dim_};
  device.backend.whole_qk_norm_sums(whole_qk_norm_, a.reshape(rows), b.reshape(rows), sums);
  if (device.mesh.tp->size() > 1) device.mesh.tp->all_reduce(sums);
}

}  // namespace sy
