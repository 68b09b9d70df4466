// Replay: validation text through a model on one rank, with the routing decisions for each token.
#pragma once

#include <functional>
#include <vector>

#include "src/data/dataset.h"
#include "src/model/engine.h"

namespace sy {

// Windows of one domain for one pass.
struct ReplayBatch {
  Index domain = 0, sequences = 0, seq_len = 0;
  // [sequences * seq_len] as in Sample
  std::vector<std::int32_t> ids, targets, document_start, prefix_end;
  Index tokens() const { return sequences * seq_len; }
  Index counted_targets() const;  // number of targets that the loss counts
};

struct ReplayOptions {
  Index max_windows = 0;  // per domain, spread evenly over the split; 0: all
  // Windows in a pass have the same length. A split's last one may be shorter and has its own pass.
  Index windows_per_pass = 1;
};

// Visits the windows of an evaluation of a model with this configuration, in its order.
// progress(done, total) counts windows, and is called after each batch.
void for_replay_batches(const Dataset& dataset, const Config& config, const ReplayOptions& options,
                        const std::function<void(const ReplayBatch&)>& visit,
                        const std::function<void(Index, Index)>& progress = {});

// Choices of one MoE layer's router.
struct LayerChoices {
  std::vector<std::int32_t> experts;  // [T, k] by descending selection score
  std::vector<float> weights;         // [T, k]
  Index dropped = 0;                  // number of dropped assignments
};
struct ReplayResult {
  double nats = 0;                      // sum of the cross-entropy
  std::vector<LayerChoices> layers;     // [MoE layer]
  std::vector<std::int32_t> predicted;  // [T] most likely next ids, if requested
};

// Runs one pass. The engine's mesh must have one rank; its device may be any.
ReplayResult replay(Engine& engine, const ReplayBatch& batch, bool dropless, bool predict);

}  // namespace sy
