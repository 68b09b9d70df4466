// What one rank does in a training step: every operation, every collective, and the memory that it takes. The numbers come
// from the engine and the optimizer that train, run on the dry backend and dry communicators.
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

// Counts are doubles, since those of some layers are multiplied to those of all.
struct Work {
  std::map<DryCall, double> calls;
  // By the group of ranks: "stage", "dp", "tp", "edp", "experts", "within", "across", "replicas" (dist/mesh.h)
  // and "world" (the host's messages).
  std::map<std::pair<std::string_view, DryTransfer>, double> transfers;

  double flops() const;
  void add(const Work& other, double times = 1);
};

struct Profile {
  Work pass;     // forward and backward of all micro-batches, with the preparing of weights
  Work update;   // from gradients to new weights, and what the ranks tell each other about the step
  Index passes;  // micro-batches
  MemoryPlan memory;
};

class Profiler {
 public:
  // stands_for: the backend that is planned for, which must outlive this; none: that of a GPU.
  Profiler(Config config, Index vocab, const Backend* stands_for);

  // The memory of parameters alone, of rank 0, which has the most: for layouts that cannot fit.
  MemoryPlan parameters(const Layout& layout) const;
  // Rank 0, with experts that are all equally busy. Layers that are alike are run once.
  Profile balanced(const Layout& layout) const;
  // This rank with the rows of a load, layer by layer. rows: [MoE layer][expert] which share of its assignments each expert
  // keeps; the ranks that hold other experts are taken to send as many as this one.
  Profile loaded(const Layout& layout, int rank, const Shares& rows) const;

 private:
  struct Passes {
    Work first, again;  // of the first micro-batch, which prepares weights, and of each other one
    Index saved = 0, scratch = 0, prepared = 0;
    void add(const Passes& other, double times);
  };
  Passes run(const Config& config, const Layout& layout, int rank, const Shares* rows) const;
  Profile whole(const Passes& passes, const Layout& layout, int rank) const;
  MemoryPlan parameters(const Layout& layout, int rank) const;
  std::unique_ptr<Backend> dry() const;

  Config config_;
  Index vocab_;
  const Backend* stands_for_;
  std::vector<ParamSpec> specs_;
};

// The layers of a configuration that are not alike, as a configuration of these alone, and how many are like each.
struct DistinctLayers {
  std::vector<Index> layers, counts;  // the first of each kind, and its number
};
DistinctLayers distinct_layers(const Config& config);
// The same model with these of its layers, dense ones before those with experts.
Config with_layers(const Config& config, const std::vector<Index>& layers);

}  // namespace sy
