#include "src/model/context.h"

#include "kernels/ops/elementwise.h"

namespace sy {

ConstView gather_tokens(const ExecutionContext& context, Arena& arena, ConstView x) {
  Comm& tp = *context.mesh.tp;
  if (tp.size() == 1) return x;
  Shape shape = x.shape();
  shape[0] *= tp.size();
  const View full = arena.take(shape, x.dtype());
  tp.all_gather(x, full);
  return full;
}

void sum_tokens(const ExecutionContext& context, View y, const std::function<void(View)>& compute) {
  Comm& tp = *context.mesh.tp;
  if (tp.size() == 1) return compute(y);
  const Arena::Scope scope(context.scratch);
  const View partial = context.temp({y.dim(0) * tp.size(), y.dim(1)});
  compute(partial);
  tp.reduce_scatter(partial, y);
}

void scatter_tokens(const ExecutionContext& context, ConstView partial, Output to) {
  if (!to.residual) return context.mesh.tp->reduce_scatter(partial, to.y);
  const Arena::Scope scope(context.scratch);
  const bool in_place = to.residual.bytes() == to.y.bytes();
  const View sum = in_place ? context.temp(to.y.shape()) : to.y;
  context.mesh.tp->reduce_scatter(partial, sum);
  run(context.device, ops::Add{.x = in_place ? sum : to.residual, .y = to.y});
}

}  // namespace sy
