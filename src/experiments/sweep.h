// `switchyard sweep`: trains a grid of configurations, and compares what came out.
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
  std::string label;                                       // "model.norm=none": the settings that vary, or "base"
  Config config;                                           // the seed apart
  std::vector<Training> runs;                              // [seed]
  std::vector<Index> seeds;                                // [seed] train.seed of each
  std::vector<Outcome> outcomes;                           // [seed] that ended well
  std::vector<std::size_t> ended;                          // the run of each outcome
  std::string failure;                                     // why a run did not; empty: all did
  std::vector<std::string> warnings;                       // of its runs, each once
  double parameters = 0, active = 0, flops_per_token = 0;  // src/params/costs.h
  std::vector<double> losses() const;                      // [seed] of those
  double loss() const { return mean(losses()); }           // NaN where none ended
  double spread() const { return deviation(losses()); }    // the standard deviation; NaN of fewer than two
};

struct SweepResult {
  std::string name;
  std::vector<Trial> trials;
  bool validated = false;  // the losses are of the validation text
  int ranks = 1;           // of each run
  Config base{};           // the configuration that the trials change
};

struct SweepOptions {
  std::filesystem::path output;
  int ranks = 1;                      // 0: not known, and layouts are not checked
  std::string launcher;               // src/experiments/program.h
  std::vector<std::string> settings;  // "--key=value", of every run
  std::vector<Index> seeds;           // empty: the configuration's own
};

// The trials of a sweep, not yet trained. Runs of one base configuration whose settings say the same are one run, with one
// folder: OUTPUT/BASE/SETTINGS. Throws InputErrors that names all that is wrong with the trials' configurations, their data and
// their layouts, and the folders that hold a run of another.
SweepResult plan_sweep(const Sweep& sweep, const SweepOptions& options);

// Trains what has not been trained, as train_all does, and reads what came out. False where this process was asked to stop.
bool train_sweeps(std::vector<SweepResult>& sweeps, const SweepOptions& options);

std::string sweep_text(const SweepResult& result);      // a table for people
std::string sweep_markdown(const SweepResult& result);  // the same as Markdown
// The document of `switchyard sweep --json` (docs/reference/json.md).
Json sweep_json(const std::vector<SweepResult>& results);
// The losses over the steps, the mean over seeds, as an SVG file. Needs gnuplot; "" where no run has two points.
std::string sweep_picture(const SweepResult& result);

}  // namespace sy
