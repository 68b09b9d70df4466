// From every rank's gradients to every rank's new weights (ZeRO-1, Rajbhandari et al., 2020):
// reduce-scatter the gradients, clip by the global norm, AdamW on the owned range, all-gather the weights.
#pragma once

#include <array>

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "src/params/store.h"

namespace sy {

// The ranks that share a group's gradient.
Comm& comm_of(const Mesh& mesh, GradGroup group);

class GradSync {
 public:
  GradSync(const Mesh& mesh, ParamStore& store, Arena& scratch) : mesh_(mesh), store_(store), scratch_(scratch) {}

  // One optimizer step from the gradients in the store, which are zero afterwards. Returns the global gradient norm before
  // clipping; every parameter counts once. When it is not finite, nothing is changed. `step` counts from 1.
  double step(const Config::Train& train, double lr, Index step);

 private:
  const Mesh& mesh_;
  ParamStore& store_;
  Arena& scratch_;
};

}  // namespace sy
