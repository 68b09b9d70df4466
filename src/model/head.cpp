#include "src/model/head.h"

#include <algorithm>

namespace sy {

Head::Head(const Config& config, Param weight, Index first_row)
    : weight_(weight), z_loss_(config.train.z_loss), linear_(weight, config.model.d_model) {
  desc_ = {first_row, static_cast<float>(config.model.output_softcap)};
}

void Head::loss(const Context& ctx, ConstView x, ConstView targets, View losses, double* z_loss, View dx) const {
  // As many tokens as give about 16 MB of logits, and enough rows for an efficient product.
  const Index V = weight_.weight.dim(0), D = x.dim(1), T = ctx.full_tokens(), P = ctx.mesh.tp->size();
  const Index chunk = std::clamp<Index>((Index{4} << 20) / std::max<Index>(V, 1), 64, 4096);
  const Arena::Scope scope(ctx.scratch);
  Backend& b = ctx.backend;
  x = gather_tokens(ctx, ctx.scratch, x);
  const View dx_full = dx && P > 1 ? ctx.scratch.f32(x.shape()) : dx;
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
    b.cross_entropy_backward(desc_, targets_chunk, lse.rows(at, n), per_token(1), per_token(z_loss_), logits);
    b.gemm({}, logits, weight_.weight, dx_full.rows(at, n).reshape({n, D}));
    linear_.backward_weight(ctx, logits, x_chunk);
  }
  if (dx && P > 1) ctx.mesh.tp->reduce_scatter(dx_full, dx);

  if (z_loss_ == 0 || !z_loss) return;
  const View own_lse = ctx.own_tokens(lse);
  std::vector<float> host_lse(own_lse.elements());
  std::vector<std::int32_t> host_targets(own_lse.elements());
  b.to_host(own_lse, host_lse.data());
  b.to_host(ctx.own_tokens(targets), host_targets.data());
  double sum = 0;
  for (std::size_t i = 0; i < host_lse.size(); ++i)
    if (host_targets[i] >= 0) sum += static_cast<double>(host_lse[i]) * host_lse[i];
  *z_loss += z_loss_ * sum / static_cast<double>(ctx.global_tokens);
}

void Head::logits(const Context& ctx, ConstView x, View logits) const {
  linear_.forward(ctx, x, logits);
}

}  // namespace sy
