#pragma once

#include "kernels/ops/norm.h"
#include "src/model/context.h"
#include "src/params/store.h"

namespace sy {

// RMSNorm (Zhang and Sennrich, 2019), LayerNorm, batch normalisation (kernels/ops/batch_norm.h), or
// the identity.
class Norm {
 public:
  Norm(const NormDesc& desc, ParamStore& store, const std::string& name);

  // Returns memory for the moments of `rows` tokens, which backward reads: [rows, 2]. A batch norm
  // has [2 * D + 1] moments, in layer.batch_norm.
  View make_moments(const LayerContext& layer, Index rows) const;
  // y: [T, D] = norm(x: [T, D]). moments: of make_moments(). Collective over all ranks for a batch
  // norm in training, unless layer.batch_norm.replay is set.
  void forward(const LayerContext& layer, ConstView x, View y, View moments) const;
  // Allocates the moments and the result from layer.saved, and returns the result.
  View forward(const LayerContext& layer, ConstView x, View& moments) const;
  // dx: [T, D] = gradient with respect to x; dy: [T, D], with respect to y; dx += if `accumulate`.
  // Collective over all ranks for a batch norm.
  void backward(const LayerContext& layer, ConstView dy, ConstView x, ConstView moments, View dx,
                bool accumulate = false) const;

 private:
  // Computes the moments of a batch norm from all ranks' tokens; in evaluation, from the averages.
  void find_batch_moments(const LayerContext& layer, ConstView x, View moments) const;

  NormDesc desc_;
  Param weight_, bias_;
  Index batch_norm_ = 0;  // index among the model's batch norms (ParamSpec::batch_norm)
};

}  // namespace sy
