// Ablation: the change of the loss without each expert.
#pragma once

#include <functional>
#include <vector>

#include "src/evaluate/replay.h"

namespace sy {

enum class AblationMode {
  // The expert's output is 0 (its down projection is 0). The weights of the other choices stay.
  mask,
  // Tokens choose their next best expert: the selection bias is below any score.
  reroute
};

// Calls `body` while one expert is disabled. Afterwards, also after an exception, the weights and
// biases are restored.
// layer: index among the MoE layers. reroute requires an engine with selection biases, and more
// experts than top_k.
void without_expert(Engine& engine, Index layer, Index expert, AblationMode mode, const std::function<void()>& body);

// Mean change of the loss over windows in nats per token, and its standard error. The error is that
// of a ratio over paired differences of windows: sum of changes / sum of tokens (Cochran, "Sampling
// techniques", 1977, section 2.11). The 95 % confidence interval is change +- 1.96 error.
struct LossChange {
  double change = 0, error = 0;  // NaN: without tokens; with fewer than two windows
  // `routed`: the windows in which the expert had a token.
  Index windows = 0;
  Index routed = 0;
};
LossChange loss_change(const std::vector<double>& changes, const std::vector<double>& tokens);

struct Ablation {
  std::vector<double> loss;  // [domain + 1] of the whole model, nats per token; last: all
  std::vector<std::vector<std::vector<LossChange>>> effects;  // [layer][expert][domain + 1]
};

// Ablates the experts of `layers` (indices among the MoE layers) one by one. Each expert costs a
// pass over the windows that have a token for it. Other windows cannot change. Dropless.
// progress(done, total) counts experts.
Ablation ablate(Engine& engine, const Dataset& dataset, const std::vector<Index>& layers, AblationMode mode,
                const ReplayOptions& options, const std::function<void(Index, Index)>& progress);

}  // namespace sy
