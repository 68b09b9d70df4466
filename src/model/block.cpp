#include "src/model/block.h"

#include "dist/activity.h"

namespace sy {

template <class F>
void Branch::forward(const Pass& pass, ConstView x, ConstView stream, View y, Saved& s, const F& f,
                     const Saved* same_input) const {
  const Device& device = pass.device;
  const Shape shape = x.shape();
  const View sum = places_.sum ? pass.keep(shape) : y;
  s.x = s.in = x;
  if (places_.input && same_input) {
    s.in = same_input->in;
    s.moments = same_input->moments;
  } else if (places_.input) {
    const View in = pass.keep(shape);
    s.moments = pass.saved.f32({shape[0], 2});
    norm_.forward(device, x, in, s.moments);
    s.in = in;
  }
  if (places_.output) {
    s.out = pass.keep(shape);
    s.out_moments = pass.saved.f32({shape[0], 2});
    f(s.in, Output{.y = s.out});
    const Arena::Scope scope(device.scratch);
    const bool in_place = stream.bytes() == sum.bytes();
    const View normed = in_place ? device.temp(shape) : sum;
    out_norm_.forward(device, s.out, normed, s.out_moments);
    device.backend.add(in_place ? normed : stream, sum);
  } else {
    f(s.in, Output{.y = sum, .from = places_.residual ? s.in : stream});
  }
  if (!places_.sum) return;
  s.sum = sum;
  s.moments = pass.saved.f32({shape[0], 2});
  norm_.forward(device, sum, y, s.moments);
}

template <class F>
void Branch::backward(const Pass& pass, View d, const Saved& s, View dx, const F& f) const {
  const Device& device = pass.device;
  Backend& b = device.backend;
  const Arena::Scope scope(device.scratch);
  // Gradient with respect to the input of a norm that follows the sublayer.
  const View before = places_.sum || places_.output ? device.temp(d.shape()) : d;
  if (places_.sum) {
    b.fill(before, 0);
    norm_.backward(device, d, s.sum, s.moments, before);
    b.copy(before, d);
  }
  if (places_.output) {
    b.fill(before, 0);
    out_norm_.backward(device, d, s.out, s.out_moments, before);
  }
  const View din = device.temp(d.shape());
  f(before, din);
  if (places_.residual) {  // the norm's output has the residual's gradient, and its input no more
    b.add(d, din);
    b.fill(dx, 0);
  }
  if (places_.input)
    norm_.backward(device, din, s.x, s.moments, dx);
  else
    b.add(din, dx);
}

Block::Block(const BlockSpec& spec, Index d_model, Index layer, ParamStore& store, RouterTables router,
             const RopeTable* rope_table, Index positions)
    : layer_(layer),
      parallel_(spec.parallel),
      shared_norm_(spec.shared_norm),
      attention_branch_(spec, store, layer_prefix(layer) + "attention_norm",
                        layer_prefix(layer) + "attention_out_norm"),
      ffn_branch_(spec, store, layer_prefix(layer) + (spec.shared_norm ? "attention_norm" : "ffn_norm"),
                  layer_prefix(layer) + "ffn_out_norm") {
  SY_ASSERT(!parallel_ || !spec.norms.sum, "a parallel block of which each branch normalises the sum");
  const AttentionSpec& attention = spec.attention;
  const std::string name = layer_prefix(layer) + "attention.";
  if (attention.latent)
    latent_attention_.emplace(attention, d_model, store, name, rope_table, positions);
  else
    attention_.emplace(attention, d_model, store, name, rope_table, positions);
  if (const MoeSpec* moe = spec.moe())
    moe_.emplace(*moe, d_model, store, layer_prefix(layer) + "moe.", router);
  else
    mlp_.emplace(std::get<MlpSpec>(spec.ffn), d_model, store, layer_prefix(layer) + "mlp.");
}

void Block::forward(const Pass& pass, View x, View y, Saved& s, const RoutingObserver* observer) const {
  const Doing doing("forward pass", layer_);
  const auto attention = [&](ConstView in, Output to) {
    const Traced part("attention");
    if (latent_attention_)
      latent_attention_->forward(pass, in, to, s.latent_attention);
    else
      attention_->forward(pass, in, to, s.attention);
  };
  const auto ffn = [&](ConstView in, Output to) {
    const Traced part(moe_ ? "moe" : "mlp");
    if (moe_)
      moe_->forward(pass, in, to, s.moe, observer);
    else
      mlp_->forward(pass, in, to, s.mlp);
  };
  const View middle = parallel_ ? y : pass.keep(x.shape());
  attention_branch_.forward(pass, x, x, middle, s.attention_branch, attention);
  const Branch::Saved* const same_input = shared_norm_ ? &s.attention_branch : nullptr;
  ffn_branch_.forward(pass, parallel_ ? x : middle, middle, y, s.ffn_branch, ffn, same_input);
}

void Block::backward(const Pass& pass, View d, Saved& s) const {
  const Doing doing("backward pass", layer_);
  const auto attention = [&](ConstView dy, View din) {
    const Traced part("attention");
    if (latent_attention_)
      latent_attention_->backward(pass, dy, s.latent_attention, din);
    else
      attention_->backward(pass, dy, s.attention, din);
  };
  const auto ffn = [&](ConstView dy, View din) {
    const Traced part(moe_ ? "moe" : "mlp");
    if (moe_)
      moe_->backward(pass, dy, s.moe, din);
    else
      mlp_->backward(pass, dy, s.mlp, din);
  };
  if (!parallel_) {
    ffn_branch_.backward(pass, d, s.ffn_branch, d, ffn);
    attention_branch_.backward(pass, d, s.attention_branch, d, attention);
    return;
  }
  // Both branches read d, so neither may add to it before the other has finished.
  const Arena::Scope scope(pass.device.scratch);
  const View dx = pass.device.temp(d.shape());
  pass.device.backend.copy(d, dx);
  ffn_branch_.backward(pass, d, s.ffn_branch, dx, ffn);
  attention_branch_.backward(pass, d, s.attention_branch, dx, attention);
  pass.device.backend.copy(dx, d);
}

}  // namespace sy
