// What each expert is worth: the change of the loss without it.
#pragma once

#include <functional>
#include <vector>

#include "src/evaluate/replay.h"

namespace sy {

// While it lives, a model does without one expert. Nothing in the model knows: it is done to its weights and biases, which get
// their values back.
class WithoutExpert {
 public:
  enum class How {
    mask,  // its tokens lose what it adds to them, and the weights of their other choices stay: its second product is 0
    reroute  // its tokens go to their next best: its selection bias is lower than any score
  };
  // layer: of the MoE layers. reroute needs an engine with selection biases, and more experts to choose from than are chosen.
  WithoutExpert(Engine& engine, Index layer, Index expert, How how);
  ~WithoutExpert();
  WithoutExpert(const WithoutExpert&) = delete;

 private:
  struct Kept {
    View place;
    Tensor values;
  };
  Engine& engine_;
  std::vector<Kept> kept_;
  std::vector<float> biases_;
};

// The mean change of the loss over windows, nats per token, and its standard error: of the paired differences of windows, as
// that of a ratio (sum of changes / sum of tokens, Cochran, "Sampling techniques", 1977, section 2.11). The 95 % confidence
// interval is change +- 1.96 error.
struct LossChange {
  double change = 0, error = 0;  // NaN: no token; fewer than two windows
  Index windows = 0;             // of which in `routed` the expert had a token
  Index routed = 0;
};
LossChange effect_of(const std::vector<double>& changes, const std::vector<double>& tokens);

struct Ablation {
  std::vector<double> loss;  // [domain + 1] of the whole model, nats per token; all: the last
  std::vector<std::vector<std::vector<LossChange>>> effects;  // [layer][expert][domain + 1]
};

// layers: of the MoE layers, those whose experts are taken away one by one. Each expert costs a pass over those windows in
// which it has a token; without one nothing can change. Dropless. progress(done, total) of experts.
Ablation ablate(Engine& engine, const Dataset& dataset, const std::vector<Index>& layers, WithoutExpert::How how,
                const ReplayOptions& options, const std::function<void(Index, Index)>& progress);

}  // namespace sy
