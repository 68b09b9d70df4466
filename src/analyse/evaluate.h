// Loss, perplexity and bits per byte of a model on the validation split, by domain, with the experts that each domain
// used.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "src/data/dataset.h"
#include "src/model/engine.h"

namespace sy {

struct DomainScore {
  std::string name;
  Index tokens = 0;                         // predicted
  double bytes = 0;                         // of text that they stand for
  double nats = 0;                          // their summed cross-entropy
  std::vector<std::vector<Index>> experts;  // [MoE layer][expert] assignments
  double loss() const;                      // nats per token
  double perplexity() const;
  double bits_per_byte() const;
};

struct EvaluateOptions {
  Index windows_per_pass = 8;  // sequences that one rank computes at a time
  Index max_windows = 0;       // of each domain, spread evenly over the split; 0: all
  bool dropless = true;
};

// Collective: every rank takes its share of the windows. progress(done, total) is called on every rank.
std::vector<DomainScore> evaluate(Engine& engine, const Dataset& dataset, const EvaluateOptions& options,
                                  const std::function<void(Index, Index)>& progress);

DomainScore total_of(const std::vector<DomainScore>& scores);

// The object that `--json` prints and RUN/evaluation.json holds.
nlohmann::json to_json(const std::vector<DomainScore>& scores, const std::vector<std::int64_t>& layer_ids, Index step);

}  // namespace sy
