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

void reduce_scatter_tokens(const ExecutionContext& context, ConstView partial, View y) {
  Comm& tp = *context.mesh.tp;
  const Arena::Scope scope(context.scratch);
  const bool in_scratch = tp.reduces_in_scratch(partial.dtype());
  tp.reduce_scatter(partial, y, in_scratch ? context.scratch.take(partial.shape(), partial.dtype()) : View());
}

void sum_tokens(const ExecutionContext& context, View y, const std::function<void(View)>& compute) {
  Comm& tp = *context.mesh.tp;
  if (tp.size() == 1) return compute(y);
  const Arena::Scope scope(context.scratch);
  const View partial = context.temp({y.dim(0) * tp.size(), y.dim(1)});
  compute(partial);
  reduce_scatter_tokens(context, partial, y);
}

void scatter_tokens(const ExecutionContext& context, ConstView partial, Output to) {
  if (!to.residual) return reduce_scatter_tokens(context, partial, to.y);
  const Arena::Scope scope(context.scratch);
  const bool in_place = to.residual.bytes() == to.y.bytes();
  const View sum = in_place ? context.temp(to.y.shape()) : to.y;
  reduce_scatter_tokens(context, partial, sum);
  run(context.device, ops::Add{.x = in_place ? sum : to.residual, .y = to.y});
}

}  // namespace sy
