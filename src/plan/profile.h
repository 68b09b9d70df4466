// Work of one rank in a training step: every operation, every collective, and the memory it needs.
// The numbers come from the training engine and optimizer, run on the dry device and dry-run
// communicators.
#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "dist/comm_dry.h"
#include "kernels/dry/dry.h"
#include "src/plan/load.h"
#include "src/train/memory.h"

namespace sy {

// Counts of operations and collectives. They are doubles, since those of some layers are
// extrapolated to all.
struct Workload {
  std::map<DryCall, double> calls;
  // Key: the group of ranks, and the transfer. The groups are "stage", "dp", "tp", "edp",
  // "experts", "within", "across", "replicas" (dist/mesh.h) and "world" (the host's messages).
  std::map<std::pair<std::string_view, DryTransfer>, double> transfers;

  double flops() const;
  void add(const Workload& other, double times = 1);
};

struct Profile {
  // Work of forward and backward of all micro-batches, and the packing of weights.
  Workload pass;
  // Work from gradients to new weights, and the exchange of the step's statistics.
  Workload update;
  Index passes;  // micro-batches
  MemoryPlan memory;
};

class Profiler {
 public:
  // planned_device: the device to plan for; it must outlive this object. nullptr means a GPU.
  Profiler(Config config, Index vocab, const Device* planned_device);

  // Returns the memory of parameters alone. Rank 0 has the most. For layouts that cannot
  // fit.
  MemoryPlan parameters(const Layout& layout, int rank = 0) const;
  // Profiles rank 0 with balanced experts. Equal layers are run once.
  Profile balanced(const Layout& layout) const;
  // Profiles a rank with an expert load, layer by layer. rows: [MoE layer][expert] share of its
  // assignments that each expert gets. Assumes that ranks with other experts send as much as this
  // one.
  Profile loaded(const Layout& layout, int rank, const Shares& rows) const;

 private:
  struct Passes {
    // Work of the first micro-batch, which packs weights, and of each later one.
    Workload first, again;
    Index saved = 0, scratch = 0, packed_weights = 0;
    Index cleared = 0;  // bytes of the gradients that the first micro-batch does not overwrite
    void add(const Passes& other, double times);
  };
  Passes run(const Config& config, const Layout& layout, int rank, const Shares* rows) const;
  Profile whole(const Passes& passes, const Layout& layout, int rank) const;
  std::unique_ptr<Device> dry() const;
  // On a card, collectives overlap with compute.
  bool on_card() const { return !planned_device_ || !planned_device_->on_host(); }

  Config config_;
  Index vocab_;
  const Device* planned_device_;
  std::vector<ParamSpec> specs_;
};

// Distinct layers of a configuration, and the number of layers like each.
struct DistinctLayers {
  std::vector<Index> layers, counts;  // first layer of each kind, and number of layers of the kind
};
DistinctLayers distinct_layers(const Config& config);
// Returns the configuration with only these layers. Dense layers must come before MoE layers.
Config with_layers(const Config& config, const std::vector<Index>& layers);

}  // namespace sy
