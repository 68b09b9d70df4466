#include "src/model/block.h"

#include "dist/activity.h"

namespace sy {
namespace {

std::string prefix_of(Index layer) {
  return "layers." + std::to_string(layer) + ".";
}

}  // namespace

Block::Block(const BlockSpec& spec, Index d_model, Index layer, const ParamStore& store, View bias)
    : layer_(layer),
      attention_norm_(spec.norm.desc(), store, prefix_of(layer) + "attention_norm"),
      ffn_norm_(spec.norm.desc(), store, prefix_of(layer) + "ffn_norm"),
      attention_(spec.attention, d_model, store, prefix_of(layer) + "attention.") {
  SY_ASSERT(spec.norm_position == NormPosition::pre && !spec.parallel, "a block that is not built yet");
  if (const MoeSpec* moe = spec.moe())
    moe_.emplace(*moe, d_model, store, prefix_of(layer) + "moe.", bias);
  else
    mlp_.emplace(std::get<MlpSpec>(spec.ffn), d_model, store, prefix_of(layer) + "mlp.");
}

View Block::forward(const Context& ctx, View x, Saved& s, View stats) const {
  const Doing doing("forward pass", layer_);
  Backend& b = ctx.backend;
  const Shape shape = x.shape();  // [T, D]
  s.x = x;
  s.attention_in = ctx.keep(shape);
  s.attention_stats = ctx.saved.f32({shape[0], 2});
  s.middle = ctx.keep(shape);
  // middle = x + attention(norm(x))
  attention_norm_.forward(ctx, x, s.attention_in, s.attention_stats);
  b.copy(x, s.middle);
  attention_.forward(ctx, s.attention_in, {.y = s.middle, .add = true}, s.attention);

  s.ffn_in = ctx.keep(shape);
  s.ffn_stats = ctx.saved.f32({shape[0], 2});
  const View y = ctx.keep(shape);
  // y = middle + ffn(norm(middle))
  ffn_norm_.forward(ctx, s.middle, s.ffn_in, s.ffn_stats);
  b.copy(s.middle, y);
  const Output sum{.y = y, .add = true};
  if (moe_)
    moe_->forward(ctx, s.ffn_in, sum, s.moe, stats);
  else
    mlp_->forward(ctx, s.ffn_in, sum, s.mlp);
  return y;
}

void Block::backward(const Context& ctx, View d, Saved& s) const {
  const Doing doing("backward pass", layer_);
  const Arena::Scope scope(ctx.scratch);
  const View dn = ctx.temp(d.shape());
  if (moe_)
    moe_->backward(ctx, d, s.moe, dn);
  else
    mlp_->backward(ctx, d, s.mlp, dn);
  ffn_norm_.backward(ctx, dn, s.middle, s.ffn_stats, d);
  attention_.backward(ctx, d, s.attention, dn);
  attention_norm_.backward(ctx, dn, s.x, s.attention_stats, d);
}

}  // namespace sy
