// Norms of the residual stream as data.
#pragma once

#include "kernels/ops/norm.h"
#include "src/config.h"

namespace sy {

// A norm of the residual stream. `eps` is added to the variance (RMSNorm: to the mean square). The
// initial value of the weight is 1 - offset.
struct NormSpec : NormDesc {
  bool bias;  // of LayerNorm and BatchNorm
};

// Norm placement of a sublayer f (attention or FFN) with input x from the residual stream.
struct NormPlacement {
  bool pre, post_sublayer, post_residual;  // f(norm(x)); x + norm(f(.)); norm(x + f(.))
  bool normed_residual = false;            // with pre: norm(x) + f(norm(x))
};
// Returns the placement that a value of model.norm_position means.
NormPlacement norm_placement(NormPosition position);

}  // namespace sy
