#include "src/model/head.h"

#include <algorithm>

namespace sy {

Head::Head(const Config& config, Param weight, Index first_row)
    : weight_(weight), z_loss_(config.train.z_loss), linear_(weight, config.model.d_model) {
  desc_ = {first_row, static_cast<float>(config.model.output_softcap)};
}

void Head::loss(const Context& ctx, ConstView x, ConstView targets, View losses, View dx) const {
  // As many tokens as the backend takes at once, and enough rows for an efficient product.
  const Index V = weight_.weight.dim(0), D = x.dim(1), T = ctx.full_tokens(), P = ctx.mesh.tp->size();
  const Index chunk = std::clamp<Index>(ctx.backend.logits_at_once() / std::max<Index>(V, 1), 64, 4096);
  const Arena::Scope scope(ctx.scratch);
  Backend& b = ctx.backend;
  x = gather_tokens(ctx, ctx.scratch, x);
  const View dx_full = dx && P > 1 ? ctx.temp(x.shape()) : dx;
  const View lse = ctx.scratch.f32({T});
  const auto per_token = [&](double factor) {
    return static_cast<float>(factor / static_cast<double>(ctx.global_tokens));
  };

  for (Index at = 0; at < T; at += chunk) {
    const Arena::Scope chunk_scope(ctx.scratch);
    const Index n = std::min(chunk, T - at);
    const View logits = ctx.scratch.f32({n, V}), stats = ctx.scratch.f32({P, n, 3});
    const ConstView x_chunk = x.rows(at, n), targets_chunk = targets.rows(at, n);
    const View mine = stats.rows(ctx.mesh.coord.tp, 1);
    linear_.forward(ctx, x_chunk, logits);
    b.cross_entropy_forward(desc_, logits, targets_chunk, mine.reshape({n, 3}));
    if (P > 1) ctx.mesh.tp->all_gather(mine, stats);
    b.cross_entropy_loss(stats, targets_chunk, lse.rows(at, n), losses.rows(at, n));
    if (!dx) continue;
    const View dlogits = ctx.dtype == DType::f32 ? logits : ctx.temp(logits.shape());
    b.cross_entropy_backward(desc_, logits, targets_chunk, lse.rows(at, n), per_token(1), per_token(z_loss_), dlogits);
    linear_.backward_input(ctx, dlogits, dx_full.rows(at, n).reshape({n, D}));
    linear_.backward_weight(ctx, dlogits, x_chunk);
  }
  if (dx && P > 1) ctx.mesh.tp->reduce_scatter(dx_full, dx);
  if (ctx.statistics.loss)
    b.loss_sums(ctx.own_tokens(losses), ctx.own_tokens(lse), ctx.own_tokens(targets), ctx.statistics.loss);
}

void Head::logits(const Context& ctx, ConstView x, View logits) const {
  linear_.forward(ctx, x, logits);
}

}  // namespace sy
