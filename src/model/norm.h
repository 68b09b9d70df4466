#pragma once

#include "kernels/ops/elementwise.h"
#include "kernels/ops/norm.h"
#include "src/model/context.h"
#include "src/params/store.h"

namespace sy {

// RMSNorm (Zhang and Sennrich, 2019), LayerNorm, or the identity.
class Norm {
 public:
  Norm(NormDesc desc, ParamStore& store, const std::string& name)
      : desc_(desc), weight_(store.find(name + ".weight")), bias_(store.find(name + ".bias")) {}

  // y: [T, D] = norm(x: [T, D]); moments: [T, 2]
  void forward(const ExecutionContext& context, ConstView x, View y, View moments) const {
    if (desc_.kind == NormKind::none) return run(context.device, ops::Copy{.x = x, .y = y});
    run(context.device,
        ops::NormForward{
            .x = x, .weight = weight_.weight, .bias = bias_.weight, .desc = desc_, .y = y, .moments = moments});
  }
  // dx: [T, D] += gradient with respect to x; dy: [T, D], with respect to y
  void backward(const ExecutionContext& context, ConstView dy, ConstView x, ConstView moments, View dx) const {
    if (desc_.kind == NormKind::none) return run(context.device, ops::Add{.x = dy, .y = dx});
    run(context.device, ops::NormBackward{.dy = dy,
                                          .x = x,
                                          .weight = weight_.weight,
                                          .moments = moments,
                                          .desc = desc_,
                                          .dx = dx,
                                          .dweight = weight_.grad,
                                          .dbias = bias_.grad});
  }

 private:
  NormDesc desc_;
  Param weight_, bias_;
};

}  // namespace sy
