#include "src/model/attention.h"

#include <cmath>

namespace sy {

Attention::Attention(const AttentionSpec& spec, Index d_model, const ParamStore& store, const std::string& prefix)
    : rope_(spec.rope.has_value()), head_dim_(spec.key_width) {
  SY_ASSERT(spec.value_width == spec.key_width, "values of {} for keys of {}", spec.value_width, spec.key_width);
  desc_.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.key_width)));
  desc_.visible.window = spec.window;
  desc_.softcap = spec.softcap;
  heads_ = store.get(prefix + "q.weight").weight.dim(0);
  kv_heads_ = store.get(prefix + "k.weight").weight.dim(0);
  qk_norm_ = {heads_, kv_heads_, spec.qk_norm.value_or(0)};
  if (spec.qk_norm) norm_ = store.get_joined(prefix + "q_norm.weight", 2);
  qkv_.emplace(store.get_joined(prefix + "q.weight", 3), d_model,
               spec.bias ? store.get_joined(prefix + "q.bias", 3) : Param{});
  out_.emplace(store.get(prefix + "out.weight"), heads_ * head_dim_, store.find(prefix + "out.bias"));
}

void Attention::forward(const Context& ctx, ConstView x, Output to, Saved& s) const {
  const Index B = ctx.sequences, S = ctx.seq_len, T = B * S, row = (heads_ + 2 * kv_heads_) * head_dim_;
  s.x = gather_tokens(ctx, ctx.saved, x);
  s.qkv = ctx.keep({B, S, heads_ + 2 * kv_heads_, head_dim_});
  s.out = ctx.keep({B, S, heads_, head_dim_});
  s.lse = ctx.saved.f32({B, heads_, S});

  const Shape by_token = {T, heads_ + 2 * kv_heads_, head_dim_};
  if (norm_) {
    s.raw = ctx.keep(s.qkv.shape());
    s.inverse = ctx.saved.f32({T, heads_ + kv_heads_});
    qkv_->forward(ctx, s.x, s.raw.reshape({T, row}));
    ctx.backend.qk_norm_forward(qk_norm_, s.raw.reshape(by_token), norm_.weight, ctx.positions,
                                rope_ ? ctx.rope_table : ConstView{}, s.qkv.reshape(by_token), s.inverse);
  } else {
    qkv_->forward(ctx, s.x, s.qkv.reshape({T, row}));
    if (rope_) ctx.backend.rope(s.qkv.reshape(by_token), heads_ + kv_heads_, ctx.positions, ctx.rope_table, false);
  }
  ctx.backend.attention_forward(desc_, queries(s.qkv), keys(s.qkv), values(s.qkv), s.out, s.lse);
  out_->forward_sum(ctx, s.out.reshape({T, heads_ * head_dim_}), to);
}

void Attention::backward(const Context& ctx, ConstView dy, const Saved& s, View dx) const {
  const Arena::Scope scope(ctx.scratch);
  const Index T = ctx.full_tokens(), row = (heads_ + 2 * kv_heads_) * head_dim_;
  out_->backward_bias(ctx, dy);
  dy = gather_tokens(ctx, ctx.scratch, dy);

  const View dout = ctx.temp(s.out.shape());
  out_->backward_input(ctx, dy, dout.reshape({T, heads_ * head_dim_}));
  out_->backward_weight(ctx, dy, s.out.reshape({T, heads_ * head_dim_}));
  const View dqkv = ctx.temp(s.qkv.shape());
  ctx.backend.attention_backward(desc_, dout, queries(s.qkv), keys(s.qkv), values(s.qkv), s.out, s.lse, queries(dqkv),
                                 keys(dqkv), values(dqkv));
  const Shape by_token = {T, heads_ + 2 * kv_heads_, head_dim_};
  View dqkv_rows = dqkv.reshape({T, row});
  if (norm_) {
    dqkv_rows = ctx.temp({T, row});
    ctx.backend.qk_norm_backward(qk_norm_, dqkv.reshape(by_token), s.raw.reshape(by_token), norm_.weight, s.inverse,
                                 ctx.positions, rope_ ? ctx.rope_table : ConstView{}, dqkv_rows.reshape(by_token),
                                 norm_.grad);
  } else if (rope_) {
    ctx.backend.rope(dqkv.reshape(by_token), heads_ + kv_heads_, ctx.positions, ctx.rope_table, true);
  }
  qkv_->backward_weight(ctx, dqkv_rows, s.x);
  qkv_->backward_bias(ctx, dqkv_rows);
  qkv_->backward_input_sum(ctx, dqkv_rows, dx);
}

}  // namespace sy
