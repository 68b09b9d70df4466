// Loss, perplexity and bits per byte of a model on the validation split, by domain, with the experts that each domain
// used.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/data/dataset.h"
#include "src/model/engine.h"
#include "src/text/json.h"

namespace sy {

struct DomainScore {
  std::string name;
  Index tokens = 0;                         // predicted
  Index windows = 0, of = 0;                // evaluated, and of the split
  Index bytes = 0;                          // of text that the tokens stand for; -1: not known
  double nats = 0;                          // their summed cross-entropy
  std::vector<std::vector<Index>> experts;  // [MoE layer][expert] assignments of all that the windows computed
  // NaN where they are not known: without tokens, or without their bytes.
  double loss() const;  // nats per token
  double perplexity() const;
  double bits_per_byte() const;
};

struct EvaluateOptions {
  Index windows_per_pass = 8;  // sequences that one rank computes at a time
  Index max_windows = 0;       // of each domain, spread evenly over the split; 0: all
  bool dropless = true;
  Index stride = 0;  // of EvalStream
};

// Collective: every rank takes its share of the windows. progress(done, total) is called on every rank.
std::vector<DomainScore> evaluate(Engine& engine, const Dataset& dataset, const EvaluateOptions& options,
                                  const std::function<void(Index, Index)>& progress);

DomainScore total_of(const std::vector<DomainScore>& scores);

// What was evaluated: a checkpoint's step, on a data set, in windows of so many tokens.
struct Evaluated {
  Index step;
  std::string dataset, dataset_digest;  // absolute path of its folder; Dataset::digest()
  bool own_dataset;                     // that which the checkpoint was trained on
  double capacity_factor;               // moe.capacity_factor as it was applied; 0: dropless
  Index window, stride;                 // tokens of a window; between the beginnings of two
};
// The file of a run that holds an evaluation of this kind: evaluation.json, which reports read, for the run's own data set,
// dropless, in windows that do not overlap; kinds have files of their own, so that none replaces another.
std::string evaluation_file(const Evaluated& what);

// The object that `--json` prints and the file holds. What is not known is null.
Json to_json(const std::vector<DomainScore>& scores, const std::vector<std::int64_t>& layer_ids, const Evaluated& what);

}  // namespace sy
