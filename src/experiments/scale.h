// `switchyard scale`: the same training on several numbers of ranks and layouts, and their speeds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/config.h"
#include "src/experiments/environment.h"
#include "src/experiments/outcome.h"
#include "src/experiments/step_breakdown.h"
#include "src/experiments/trainings.h"
#include "src/plan/plan.h"
#include "src/provenance/provenance.h"
#include "src/text/json.h"

namespace sy {

struct ScaleOptions {
  std::filesystem::path config, output;
  std::vector<std::string> settings;  // "--key=value", for every run
  std::vector<int> ranks;             // in rising order
  // Used with any number of ranks (`ranks` is not read); all layouts that fit if empty.
  std::vector<Layout> layouts;
  bool weak = false;              // the batch grows with the ranks
  bool balanced = true;           // also measure each point with forced balanced routing
  Index warm_up = 3, steps = 10;  // unmeasured and measured steps
  // Each repeat starts its ranks anew. The first repeats of all points run before the second ones.
  int repeats = 3;
  // Machine for which `plan` predicts each point; no predictions if empty.
  std::optional<Machine> machine{};
  // Expert load of the unforced routing, for predictions; equal loads if empty.
  std::optional<Shares> load{};
  std::string launcher;  // see src/experiments/program.h
};

// A layout on a number of ranks, with one kind of routing.
struct ScalePoint {
  Layout layout;
  Index global_batch = 0, micro_batch = 0;
  bool balanced = false;       // moe.choice = balanced
  std::vector<Training> runs;  // [repeat]
  // [successful repeat] median over its measured steps.
  std::vector<double> step_seconds{};
  // Time of a traced step by category, mean over ranks and runs.
  std::optional<StepTime> breakdown{};
  std::string failure{};                // reason why a run failed; empty if none did
  std::vector<std::string> warnings{};  // warnings of its runs, without duplicates
  // If false, an earlier call measured it, with the same settings and environment.
  bool requested = true;
  Index tokens = 0;                                        // per step
  double predicted = not_known;                            // seconds/step; NaN without a machine
  double seconds() const { return median(step_seconds); }  // NaN if nothing was measured
  double spread() const;                                   // (max - min) / median of the repeats
  double tokens_per_second() const { return static_cast<double>(tokens) / seconds(); }
};

struct ScaleResult {
  std::string name;  // name of the configuration
  bool weak = false;
  std::vector<ScalePoint> points;  // by ranks, the requested ones first, by layout and routing
  Environment environment{};
  Config config{};                   // configuration that the runs change
  std::optional<Machine> machine{};  // machine of the predictions
  Index warm_up = 0, steps = 0;      // per run
  int repeats = 0;
  Json provenance = {};  // record of the call; may be null

  // Returns the reference point: the fastest one with unforced routing on the fewest ranks. nullptr
  // if none was measured.
  const ScalePoint* base() const;
  // Ratio of tokens/s to base(); NaN if either is unknown.
  double speedup(const ScalePoint& point) const;
  // Speed-up divided by the ratio of the numbers of ranks.
  double efficiency(const ScalePoint& point) const;
  // Returns by which share a step takes longer with unforced than with balanced routing; NaN if
  // unknown.
  double routing_gap(const ScalePoint& point) const;
  // Returns the warnings of the point's runs and of doubtful numbers: efficiency above 110 %,
  // spread above 20 %.
  std::vector<std::string> warnings(const ScalePoint& point) const;
};

// Layouts of each number of ranks, and the reasons why requested layouts are left out.
struct ScaleLayouts {
  std::vector<Layout> layouts;
  std::vector<std::string> left_out;
};
// Throws InputErrors if no layout fits.
ScaleLayouts scale_layouts(const Config& config, const ScaleOptions& options);

// Returns the requested points, not yet measured, and matching points of earlier calls. A point
// matches if it was measured with the same settings in the same environment.
// Runs are in OUTPUT/NAME/ENVIRONMENT/. The micro-batch is at most the configuration's, and the
// largest that divides a rank's share of the batch. Throws InputError if no layout fits.
ScaleResult plan_scale(const ScaleOptions& options);
// Measures the points that have not been measured. Returns false if this process was asked to stop.
bool measure_scale(ScaleResult& result, const ScaleOptions& options);

std::string scale_text(const ScaleResult& result);
std::string scale_csv(const ScaleResult& result);
// The document of `switchyard scale --json` (docs/reference/json.md).
Json scale_json(const ScaleResult& result);
// One self-contained page with so much of the record. Needs gnuplot.
std::string scale_html(const ScaleResult& result, ProvenanceDetail detail = ProvenanceDetail::brief);

}  // namespace sy
