// `switchyard sweep`: trains a grid of configurations and compares the results.
#pragma once

#include <string>
#include <vector>

#include "src/config.h"
#include "src/experiments/grid.h"
#include "src/experiments/outcome.h"
#include "src/experiments/trainings.h"
#include "src/text/json.h"

namespace sy {

// One configuration of a sweep, trained once for each seed.
struct Trial {
  std::string label;                    // varied settings, such as "model.norm=none", or "base"
  Config config;                        // without the seed
  std::vector<Training> runs;           // [seed]
  std::vector<Index> seeds;             // [seed] train.seed
  std::vector<Outcome> outcomes;        // [successful run]
  std::vector<std::size_t> ended;       // [successful run] its index in `runs`
  std::string failure;                  // why a run failed, or else why one stopped; may be empty
  std::size_t failed = 0, stopped = 0;  // numbers of such runs (IncompleteRun)
  std::vector<std::string> warnings;    // warnings of its runs, without duplicates
  // See src/params/costs.h.
  double parameters = 0, active = 0, flops_per_token = 0;
  std::vector<double> losses() const;                    // [successful run]
  double loss() const { return mean(losses()); }         // NaN if no run succeeded
  double spread() const { return deviation(losses()); }  // of the sample; NaN if n < 2
};

struct SweepResult {
  std::string name;
  std::vector<Trial> trials;
  bool validated = false;  // the losses are validation losses
  int ranks = 1;           // per run
  Config base{};           // configuration that the trials change
};

struct SweepOptions {
  std::filesystem::path output;
  int ranks = 1;                      // 0: unknown, and layouts are not checked
  std::string launcher;               // see train_all()
  std::vector<std::string> settings;  // "--key=value", for every run
  std::vector<Index> seeds;           // empty: the configuration's own
};

// Returns the trials of a sweep, not yet trained. Runs of one base configuration with equal
// settings are one run in one folder: OUTPUT/BASE/SETTINGS.
// Throws InputErrors that name all problems of the trials' configurations, data and layouts, and
// folders that hold a run with other settings. Trials that differ in whether they validate are a
// problem, and so is a varied train.seed beside `seeds`.
SweepResult plan_sweep(const Sweep& sweep, const SweepOptions& options);

// Trains the missing runs as train_all does, and reads the results. Returns false if this process
// was asked to stop.
bool train_sweeps(std::vector<SweepResult>& sweeps, const SweepOptions& options);

std::string sweep_text(const SweepResult& result);      // a table for a terminal
std::string sweep_markdown(const SweepResult& result);  // the same table as Markdown
// The document of `switchyard sweep --json` (docs/reference/json.md).
// provenance: record of the call; may be null.
Json sweep_json(const std::vector<SweepResult>& results, const Json& provenance);
// Returns an SVG file of the losses over the steps, averaged over seeds. Needs gnuplot. Returns ""
// if no run has two points. provenance: the content of the element metadata, as JSON; may be null.
std::string sweep_picture(const SweepResult& result, const Json& provenance);

}  // namespace sy
