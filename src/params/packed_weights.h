// Packed weights for the device's GEMMs (ops::PackWeight), packed once until the weights
// change. This class is their only owner. Code that changes weights calls invalidate(); code that
// runs a pass calls refresh() first.
#pragma once

#include <functional>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops/gemm.h"

namespace sy {

class PackedWeights {
 public:
  // packing: passes that run often enough to pack for, and a format that the device supports.
  // wait_for_weights: called before weights are read.
  PackedWeights(Device& device, WeightPacking packing, std::function<void()> wait_for_weights);

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
  struct Packed {
    View values;
    GemmPass pass;
    Tensor elements;
    Tensor scales;  // empty if the format has none
  };
  Device& device_;
  WeightPacking packing_;
  std::function<void()> wait_for_weights_;
  std::vector<Packed> packed_;
  std::vector<std::function<void()>> derived_;
  bool stale_ = true;
};

}  // namespace sy
