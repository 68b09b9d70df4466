#include "src/model/block.h"

#include "dist/activity.h"

namespace sy {

Block::Block(const BlockSpec& spec, Index d_model, Index layer, ParamStore& store, View bias, ConstView rope_table)
    : layer_(layer),
      attention_norm_(spec.norm.desc(), store, layer_prefix(layer) + "attention_norm"),
      ffn_norm_(spec.norm.desc(), store, layer_prefix(layer) + "ffn_norm"),
      attention_(spec.attention, d_model, store, layer_prefix(layer) + "attention.", rope_table) {
  SY_ASSERT(spec.norm_position == NormPosition::pre && !spec.parallel, "a block that is not built yet");
  if (const MoeSpec* moe = spec.moe())
    moe_.emplace(*moe, d_model, store, layer_prefix(layer) + "moe.", bias);
  else
    mlp_.emplace(std::get<MlpSpec>(spec.ffn), d_model, store, layer_prefix(layer) + "mlp.");
}

View Block::forward(const Pass& pass, View x, Saved& s, RouterReport report) const {
  const Doing doing("forward pass", layer_);
  const Device& device = pass.device;
  Backend& b = device.backend;
  const Shape shape = x.shape();  // [T, D]
  s.x = x;
  s.attention_in = pass.keep(shape);
  s.attention_moments = pass.saved.f32({shape[0], 2});
  s.middle = pass.keep(shape);
  // middle = x + attention(norm(x))
  attention_norm_.forward(device, x, s.attention_in, s.attention_moments);
  b.copy(x, s.middle);
  attention_.forward(pass, s.attention_in, {.y = s.middle, .add = true}, s.attention);

  s.ffn_in = pass.keep(shape);
  s.ffn_moments = pass.saved.f32({shape[0], 2});
  const View y = pass.keep(shape);
  // y = middle + ffn(norm(middle))
  ffn_norm_.forward(device, s.middle, s.ffn_in, s.ffn_moments);
  b.copy(s.middle, y);
  const Output sum{.y = y, .add = true};
  if (moe_)
    moe_->forward(pass, s.ffn_in, sum, s.moe, report);
  else
    mlp_->forward(pass, s.ffn_in, sum, s.mlp);
  return y;
}

void Block::backward(const Pass& pass, View d, Saved& s) const {
  const Doing doing("backward pass", layer_);
  const Device& device = pass.device;
  const Arena::Scope scope(device.scratch);
  const View dn = device.temp(d.shape());
  if (moe_)
    moe_->backward(pass, d, s.moe, dn);
  else
    mlp_->backward(pass, d, s.mlp, dn);
  ffn_norm_.backward(device, dn, s.middle, s.ffn_moments, d);
  attention_.backward(pass, d, s.attention, dn);
  attention_norm_.backward(device, dn, s.x, s.attention_moments, d);
}

}  // namespace sy
