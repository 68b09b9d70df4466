// Weights as the backend's products want them (Backend::prepare): made once for all passes until the weights change. The one
// owner of these forms; what changes weights invalidates them, and what runs a pass refreshes them first.
#pragma once

#include <vector>

#include "kernels/backend.h"

namespace sy {

class PreparedWeights {
 public:
  // uses: the products that will be computed often enough to prepare for; none: the weights are read as they lie.
  PreparedWeights(Backend& backend, std::vector<WeightUse> uses) : backend_(backend), uses_(std::move(uses)) {}

  // A weight [N, Q] or [E, N, Q] with its forms, which hold nothing before the next refresh.
  Weight add(View values);

  void invalidate() { stale_ = true; }
  // Prepares all weights anew where they may have changed. A pass without this computes with what was prepared before.
  void refresh();

  Index bytes() const;

 private:
  struct Form {
    View values;
    WeightUse use;
    Tensor prepared;
  };
  Backend& backend_;
  std::vector<WeightUse> uses_;
  std::vector<Form> forms_;
  bool stale_ = true;
};

}  // namespace sy
