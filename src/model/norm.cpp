#include "src/model/norm.h"

#include "dist/phase.h"
#include "kernels/ops/batch_norm.h"
#include "kernels/ops/elementwise.h"

namespace sy {
namespace {

// The padding among this rank's own tokens (ops::BatchNormSums::mask).
ConstView own_mask(const LayerContext& layer) {
  const ConstView mask = layer.stream.token_mask;
  return mask ? layer.context.own_tokens(mask) : mask;
}

// Sums over the tokens of all ranks, which run this pass of their micro-batches together.
void sum_over_ranks(const ExecutionContext& context, View sums) {
  const ScopedSubphase subphase(context.mesh.rank_context(), batch_norm_subphase);
  context.mesh.world().all_reduce(sums);
}

}  // namespace

Norm::Norm(const NormDesc& desc, ParamStore& store, const std::string& name)
    : desc_(desc), weight_(store.find(name + ".weight")), bias_(store.find(name + ".bias")) {
  if (desc.kind == NormKind::batchnorm && weight_) batch_norm_ = store.spec(name + ".weight").batch_norm.value();
}

View Norm::make_moments(const LayerContext& layer, Index rows) const {
  if (desc_.kind != NormKind::batchnorm) return layer.saved.f32({rows, 2});
  const View all = layer.batch_norm.moments;
  return all.rows(batch_norm_, 1).reshape({all.dim(1)});
}

void Norm::find_batch_moments(const LayerContext& layer, ConstView x, View moments) const {
  const ExecutionContext& context = layer.context;
  ops::BatchNormMoments op{.eps = desc_.eps, .moments = moments};
  if (const View all = layer.batch_norm.averages) op.averages = all.rows(batch_norm_, 1).reshape({2, all.dim(2)});
  if (layer.batch.evaluation || layer.batch.generation) return run(context.device, op);
  const Arena::Scope scope(context.scratch);
  const View sums = context.scratch.take(moments.shape(), DType::f64);
  run(context.device, ops::BatchNormSums{.x = x, .mask = own_mask(layer), .sums = sums});
  sum_over_ranks(context, sums);
  op.sums = sums;
  run(context.device, op);
}

void Norm::forward(const LayerContext& layer, ConstView x, View y, View moments) const {
  Device& device = layer.context.device;
  if (desc_.kind == NormKind::none) return run(device, ops::Copy{.x = x, .y = y});
  if (desc_.kind != NormKind::batchnorm)
    return run(device,
               ops::NormForward{
                   .x = x, .weight = weight_.weight, .bias = bias_.weight, .desc = desc_, .y = y, .moments = moments});
  if (!layer.batch_norm.replay) find_batch_moments(layer, x, moments);
  run(device,
      ops::BatchNormForward{.x = x, .weight = weight_.weight, .bias = bias_.weight, .moments = moments, .y = y});
}

View Norm::forward(const LayerContext& layer, ConstView x, View& moments) const {
  const View y = layer.save(x.shape());
  moments = make_moments(layer, x.dim(0));
  forward(layer, x, y, moments);
  return y;
}

void Norm::backward(const LayerContext& layer, ConstView dy, ConstView x, ConstView moments, View dx,
                    bool accumulate) const {
  const ExecutionContext& context = layer.context;
  if (!accumulate) run(context.device, ops::Fill{.x = dx, .value = 0});
  if (desc_.kind == NormKind::none) return run(context.device, ops::Add{.x = dy, .y = dx});
  if (desc_.kind != NormKind::batchnorm)
    return run(context.device, ops::NormBackward{.dy = dy,
                                                 .x = x,
                                                 .weight = weight_.weight,
                                                 .moments = moments,
                                                 .desc = desc_,
                                                 .dx = dx,
                                                 .dweight = weight_.grad,
                                                 .dbias = bias_.grad});
  const Arena::Scope scope(context.scratch);
  const View sums = context.scratch.take({2, x.dim(1)}, DType::f64);
  run(context.device,
      ops::BatchNormGradientSums{
          .dy = dy, .x = x, .moments = moments, .dweight = weight_.grad, .dbias = bias_.grad, .sums = sums});
  sum_over_ranks(context, sums);
  run(context.device, ops::BatchNormBackward{.dy = dy,
                                             .x = x,
                                             .weight = weight_.weight,
                                             .moments = moments,
                                             .sums = sums,
                                             .mask = own_mask(layer),
                                             .dx = dx});
}

}  // namespace sy
