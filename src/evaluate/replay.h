// Validation text through a model on one rank, with what each router chose of each token.
#pragma once

#include <functional>
#include <vector>

#include "src/data/dataset.h"
#include "src/model/engine.h"

namespace sy {

// Windows of one domain that go through the model at once.
struct ReplayBatch {
  Index domain = 0, sequences = 0, seq_len = 0;
  std::vector<std::int32_t> ids, targets;  // [sequences * seq_len]
  Index tokens() const { return sequences * seq_len; }
};

struct ReplayOptions {
  Index max_windows = 0;       // of each domain, spread evenly over the split; 0: all
  Index windows_per_pass = 1;  // of one length: a split's last window, which may be shorter, goes alone
};

// The windows that Switchyard's evaluation takes, in its order. progress(done, total) of windows, behind each batch.
void for_replay_batches(const Dataset& dataset, Index seq_len, const ReplayOptions& options,
                        const std::function<void(const ReplayBatch&)>& visit,
                        const std::function<void(Index, Index)>& progress = {});

// What one MoE layer's router chose.
struct LayerChoices {
  std::vector<std::int32_t> experts;  // [T, k] by falling selection score
  std::vector<float> weights;         // [T, k]
  Index dropped = 0;                  // assignments
};
struct Replayed {
  double nats = 0;                      // the summed cross-entropy
  std::vector<LayerChoices> layers;     // [MoE layer]
  std::vector<std::int32_t> predicted;  // [T] the likeliest next ids, where asked for
};

// One pass. The engine's mesh has one rank, and its weights lie on any backend.
Replayed replay(Engine& engine, const ReplayBatch& batch, bool dropless, bool predict);

}  // namespace sy
