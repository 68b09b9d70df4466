// Weights as the backend's products want them (Backend::prepare): made once for all passes until the weights change. The one
// owner of these forms; what changes weights invalidates them, and what runs a pass refreshes them first.
#pragma once

#include <functional>
#include <vector>

#include "kernels/backend.h"

namespace sy {

class PreparedWeights {
 public:
  // uses: the products that will be computed often enough to prepare for; none: the weights are read as they lie. whole: called
  // before weights are read.
  PreparedWeights(Backend& backend, std::vector<WeightUse> uses, std::function<void()> whole)
      : backend_(backend), uses_(std::move(uses)), whole_(std::move(whole)) {}

  // A weight [N, Q] or [E, N, Q] with its forms, which hold nothing before the next refresh.
  Weight add(View values);

  // What else follows from weights alone: make() computes it, at each refresh after weights may have changed.
  void derive(std::function<void()> make) {
    derived_.push_back(std::move(make));
    stale_ = true;
  }

  void invalidate() { stale_ = true; }
  // Makes all of it anew where weights may have changed. A pass without this computes with what was prepared before.
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
  std::function<void()> whole_;
  std::vector<Form> forms_;
  std::vector<std::function<void()>> derived_;
  bool stale_ = true;
};

}  // namespace sy
