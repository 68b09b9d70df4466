#pragma once

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
    if (desc_.kind == NormKind::none) return context.backend.copy(x, y);
    context.backend.norm_forward(desc_, x, weight_.weight, bias_.weight, y, moments);
  }
  // dx: [T, D] += gradient with respect to x; dy: [T, D], with respect to y
  void backward(const ExecutionContext& context, ConstView dy, ConstView x, ConstView moments, View dx) const {
    if (desc_.kind == NormKind::none) return context.backend.add(dy, dx);
    context.backend.norm_backward(desc_, dy, x, weight_.weight, moments, dx, weight_.grad, bias_.grad);
  }

 private:
  NormDesc desc_;
  Param weight_, bias_;
};

}  // namespace sy
