#include "src/model/context.h"

namespace sy {

ConstView gather_tokens(const Context& ctx, Arena& arena, ConstView x) {
  if (ctx.mesh.tp->size() == 1) return x;
  Shape shape = x.shape();
  shape[0] = ctx.full_tokens();
  const View full = arena.take(shape, x.dtype());
  ctx.mesh.tp->all_gather(x, full);
  return full;
}

void scatter_tokens(const Context& ctx, ConstView partial, Output to) {
  if (!to.add) return ctx.mesh.tp->reduce_scatter(partial, to.y);
  const Arena::Scope scope(ctx.scratch);
  const View sum = ctx.temp(to.y.shape());
  ctx.mesh.tp->reduce_scatter(partial, sum);
  ctx.backend.add(sum, to.y);
}

}  // namespace sy
