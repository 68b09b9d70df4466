#include "src/model/attention.h"

#include <cmath>

namespace sy {

Attention::Attention(const AttentionSpec& spec, Index d_model, ParamStore& store, const std::string& prefix,
                     ConstView rope_table)
    : rope_table_(rope_table), head_dim_(spec.key_width) {
  SY_ASSERT(spec.value_width == spec.key_width, "values of {} for keys of {}", spec.value_width, spec.key_width);
  SY_ASSERT(rope_table ? spec.rope && rope_table.dim(1) * 2 == spec.rope->rotated : !spec.rope, "another table");
  desc_.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.key_width)));
  desc_.visible.window = spec.window;
  desc_.visible.sparse = spec.sparse;
  desc_.softcap = spec.softcap;
  heads_ = store.get(prefix + "q.weight").weight.dim(0);
  kv_heads_ = store.get(prefix + "k.weight").weight.dim(0);
  if (spec.relative) {
    const Index first = store.box(prefix + "q.weight").begin[0];
    relative_.emplace(*spec.relative, spec.heads, Range{first, first + heads_}, store, prefix);
  }
  sinks_ = store.find(prefix + "sinks");
  qk_norm_ = {heads_, kv_heads_, spec.qk_norm.value_or(0)};
  if (spec.qk_norm) norm_ = store.get_joined(prefix + "q_norm.weight", 2);
  qkv_.emplace(store, store.get_joined(prefix + "q.weight", 3), d_model,
               spec.bias ? store.get_joined(prefix + "q.bias", 3) : Param{});
  out_.emplace(store, store.get(prefix + "out.weight"), heads_ * head_dim_, store.find(prefix + "out.bias"));
}

void Attention::forward(const Pass& pass, ConstView x, Output to, Saved& s) const {
  const Device& device = pass.device;
  const Index B = pass.batch.sequences, S = pass.batch.seq_len, T = B * S, row = (heads_ + 2 * kv_heads_) * head_dim_;
  s.x = gather_tokens(device, pass.saved, x);
  s.qkv = pass.keep({B, S, heads_ + 2 * kv_heads_, head_dim_});
  s.out = pass.keep({B, S, heads_, head_dim_});
  s.lse = pass.saved.f32({B, heads_, S});

  const Shape by_token = {T, heads_ + 2 * kv_heads_, head_dim_};
  if (norm_) {
    s.raw = pass.keep(s.qkv.shape());
    s.inverse = pass.saved.f32({T, heads_ + kv_heads_});
    qkv_->forward(device, s.x, s.raw.reshape({T, row}));
    device.backend.qk_norm_forward(qk_norm_, s.raw.reshape(by_token), norm_.weight, pass.batch.positions, rope_table_,
                                   s.qkv.reshape(by_token), s.inverse);
  } else {
    qkv_->forward(device, s.x, s.qkv.reshape({T, row}));
    if (rope_table_)
      device.backend.rope(s.qkv.reshape(by_token), heads_ + kv_heads_, pass.batch.positions, rope_table_, false);
  }
  {
    const Arena::Scope scope(device.scratch);
    device.backend.attention_forward(described(device), queries(s.qkv), keys(s.qkv), values(s.qkv), s.out, s.lse);
  }
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
  const AttentionDesc desc = described(device);
  device.backend.attention_backward(desc, dout, queries(s.qkv), keys(s.qkv), values(s.qkv), s.out, s.lse, queries(dqkv),
                                    keys(dqkv), values(dqkv));
  backward_learned(device, desc, dout, s);
  const Shape by_token = {T, heads_ + 2 * kv_heads_, head_dim_};
  View dqkv_rows = dqkv.reshape({T, row});
  if (norm_) {
    dqkv_rows = device.temp({T, row});
    device.backend.qk_norm_backward(qk_norm_, dqkv.reshape(by_token), s.raw.reshape(by_token), norm_.weight, s.inverse,
                                    pass.batch.positions, rope_table_, dqkv_rows.reshape(by_token), norm_.grad);
  } else if (rope_table_) {
    device.backend.rope(dqkv.reshape(by_token), heads_ + kv_heads_, pass.batch.positions, rope_table_, true);
  }
  qkv_->backward_weight(device, dqkv_rows, s.x);
  qkv_->backward_bias(device, dqkv_rows);
  qkv_->backward_input_sum(device, dqkv_rows, dx);
}

AttentionDesc Attention::described(const Device& device) const {
  AttentionDesc desc = desc_;
  if (relative_) desc.bias = relative_->bias(device);
  if (sinks_) desc.sinks = as_f32(device, sinks_.weight);
  return desc;
}

void Attention::backward_learned(const Device& device, const AttentionDesc& desc, ConstView dout,
                                 const Saved& s) const {
  if (!sinks_ && !(relative_ && relative_->learned())) return;
  View dbias;
  if (relative_ && relative_->learned()) {
    dbias = device.scratch.f32(desc.bias.shape());
    device.backend.fill(dbias, 0);
  }
  device.backend.attention_backward_learned(desc, dout, queries(s.qkv), keys(s.qkv), values(s.qkv), s.out, s.lse, dbias,
                                            sinks_.grad);
  if (dbias) relative_->backward(device, dbias);
}

}  // namespace sy
