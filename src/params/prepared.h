// Packed weights for the backend's GEMMs (Backend::prepare), packed once until the weights change.
// This class is their only owner. Code that changes weights calls invalidate(); code that runs a
// pass calls refresh() first.
#pragma once

#include <functional>
#include <vector>

#include "kernels/backend.h"

namespace sy {

class PreparedWeights {
 public:
  // uses: GEMM passes that run often enough to pack for; empty: weights are not packed.
  // whole: called before weights are read.
  PreparedWeights(Backend& backend, std::vector<WeightUse> uses, std::function<void()> whole)
      : backend_(backend), uses_(std::move(uses)), whole_(std::move(whole)) {}

  // Returns a weight [N, Q] or [E, N, Q] with its packed forms. They are undefined until refresh().
  Weight add(View values);

  // Registers make(), which computes other data from the weights.
  // refresh() calls it after the weights may have changed.
  void derive(std::function<void()> make) {
    derived_.push_back(std::move(make));
    stale_ = true;
  }

  void invalidate() { stale_ = true; }
  // Packs all weights and calls all make() if weights may have changed.
  // A pass without a refresh computes with the old packed weights.
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
