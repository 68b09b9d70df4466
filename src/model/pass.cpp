#include "src/model/pass.h"

namespace sy {

ConstView gather_tokens(const Device& device, Arena& arena, ConstView x) {
  Comm& tp = *device.mesh.tp;
  if (tp.size() == 1) return x;
  Shape shape = x.shape();
  shape[0] *= tp.size();
  const View full = arena.take(shape, x.dtype());
  tp.all_gather(x, full);
  return full;
}

void sum_tokens(const Device& device, View y, const std::function<void(View)>& compute) {
  Comm& tp = *device.mesh.tp;
  if (tp.size() == 1) return compute(y);
  const Arena::Scope scope(device.scratch);
  const View partial = device.temp({y.dim(0) * tp.size(), y.dim(1)});
  compute(partial);
  tp.reduce_scatter(partial, y);
}

void scatter_tokens(const Device& device, ConstView partial, Output to) {
  if (!to.from) return device.mesh.tp->reduce_scatter(partial, to.y);
  const Arena::Scope scope(device.scratch);
  const bool in_place = to.from.bytes() == to.y.bytes();
  const View sum = in_place ? device.temp(to.y.shape()) : to.y;
  device.mesh.tp->reduce_scatter(partial, sum);
  device.backend.add(in_place ? sum : to.from, to.y);
}

}  // namespace sy
