// Loss, perplexity and bits per byte of a model on the validation split, by domain, and the experts
// that each domain uses.
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
  Index tokens = 0;                      // predicted tokens
  Index windows = 0, total_windows = 0;  // evaluated windows; windows of the split
  Index bytes = 0;                       // bytes of text of the tokens; -1 if unknown
  double nats = 0;                       // sum of the tokens' cross-entropy
  // [MoE layer][expert] assignments of all computed tokens.
  std::vector<std::vector<Index>> experts;
  // NaN if they are undefined: without tokens, or without known bytes.
  double loss() const;  // nats per token
  double perplexity() const;
  double bits_per_byte() const;
};

struct EvaluateOptions {
  Index windows_per_pass = 8;  // number of sequences in a pass of one rank
  Index max_windows = 0;       // per domain, spread evenly over the split; 0: all
  bool dropless = true;
  Index stride = 0;  // see EvalStream
  // If true, each token is hidden alone, and predicted from all others of its window (Salazar et
  // al., "Masked Language Model Scoring", 2020). Only with train.objective = masked.
  bool hide_each = false;
};

// Evaluates all domains. Collective: each rank computes a share of the windows. progress(done,
// total) is called on every rank.
std::vector<DomainScore> evaluate(Engine& engine, const Dataset& dataset, const EvaluateOptions& options,
                                  const std::function<void(Index, Index)>& progress);

DomainScore total_of(const std::vector<DomainScore>& scores);

// The predicted tokens: each next token; those that masking chose; each token, hidden alone. The
// exponential of the loss is a perplexity, no perplexity, and a pseudo-perplexity.
enum class Scoring { next_tokens, masked_tokens, each_token };

// Description of an evaluation: the step of a checkpoint, a data set and the windows.
struct EvaluationInfo {
  Index step;
  std::string dataset, dataset_digest;  // absolute path of its folder; Dataset::digest()
  bool own_dataset;                     // true: the data set of the checkpoint's training
  double capacity_factor;               // applied moe.capacity_factor; 0: dropless
  Index window, stride;                 // in tokens: length of a window; distance of windows
  Scoring scoring = Scoring::next_tokens;
  Json provenance = {};  // record of the evaluation; may be null
};
// Returns the name of the file in a run folder for this kind of evaluation. It is evaluation.json,
// which reports read, for the run's own data set, dropless, without overlap of windows. Other kinds
// have other names, so that none replaces another.
std::string evaluation_file(const EvaluationInfo& info);

// Returns the object that `--json` prints and the file holds. Unknown values are null.
Json to_json(const std::vector<DomainScore>& scores, const std::vector<std::int64_t>& layer_ids,
             const EvaluationInfo& info);

}  // namespace sy
