// `switchyard scale`: the same training on other numbers of ranks and other layouts, and how fast each is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/config.h"
#include "src/experiments/environment.h"
#include "src/experiments/outcome.h"
#include "src/experiments/step_parts.h"
#include "src/experiments/trainings.h"
#include "src/plan/plan.h"
#include "src/text/json.h"

namespace sy {

struct ScaleOptions {
  std::filesystem::path config, output;
  std::vector<std::string> settings;  // "--key=value", of every run
  std::vector<int> ranks;             // rising
  std::vector<Layout> layouts;        // of any number of ranks (`ranks` is not read); none: all that fit
  bool weak = false;                  // the batch grows with the ranks
  bool balanced = true;               // each is measured with forced balanced routing, too
  Index warm_up = 3, steps = 10;      // not measured, and measured
  int repeats = 3;                    // each starts its ranks anew; those of all points take turns
  std::optional<Machine> machine{};   // for which `plan` predicts each point
  std::optional<Shares> load{};       // of the own routing, for that; none: experts are equally busy
  std::string launcher;               // src/experiments/program.h
};

// A layout on so many ranks, with one kind of routing.
struct ScalePoint {
  Layout layout;
  Index global_batch = 0, micro_batch = 0;
  bool balanced = false;                // moe.choice = balanced
  std::vector<Training> runs;           // [repeat]
  std::vector<double> step_seconds{};   // [repeat that ended well] the median over its measured steps
  std::optional<StepTime> parts{};      // what the time of a traced step went to, the mean over ranks and runs
  std::string failure{};                // why a run did not; empty: all did
  std::vector<std::string> warnings{};  // of its runs, each once
  bool requested = true;                // false: measured by an earlier call, with the same settings and environment
  Index tokens = 0;                     // of a step
  double predicted = not_known;         // seconds of a step; NaN without a machine
  double seconds() const { return median(step_seconds); }  // NaN where nothing was measured
  double spread() const;                                   // (most - least) / median of the repeats
  double tokens_per_second() const { return static_cast<double>(tokens) / seconds(); }
};

struct ScaleResult {
  std::string name;  // of the configuration
  bool weak = false;
  std::vector<ScalePoint> points;  // by ranks, the requested ones first, by layout and routing
  Environment environment{};
  Config config{};                   // that the runs change
  std::optional<Machine> machine{};  // of the predictions
  Index warm_up = 0, steps = 0;      // of each run
  int repeats = 0;

  // The point that others are compared with: of the fewest ranks, the fastest with routing of its own. nullptr: none was measured.
  const ScalePoint* base() const;
  double speedup(const ScalePoint& point) const;     // tokens/s by those of base(); NaN where either is unknown
  double efficiency(const ScalePoint& point) const;  // the speed-up by how many times as many ranks
  // How much longer a step takes with the routing of its own than with a balanced one, as a share; NaN where it is not known.
  double routing_gap(const ScalePoint& point) const;
  // Returns the warnings of its runs, and of doubtful numbers: efficiency above 110 %, spread above
  // 20 %.
  std::vector<std::string> warnings(const ScalePoint& point) const;
};

// The layouts of each number of ranks, and why layouts that were asked for are not among them.
struct ScaleLayouts {
  std::vector<Layout> layouts;
  std::vector<std::string> left_out;
};
// Throws InputErrors if no layout fits.
ScaleLayouts scale_layouts(const Config& config, const ScaleOptions& options);

// The requested points, not yet measured, and those that earlier calls measured with the same settings
// in the same environment. Runs are in OUTPUT/NAME/ENVIRONMENT/. The micro-batch is the largest up to the
// configuration's that divides a rank's share of the batch. Throws InputError where no layout fits.
ScaleResult plan_scale(const ScaleOptions& options);
// Measures what has not been measured. False where this process was asked to stop.
bool measure_scale(ScaleResult& result, const ScaleOptions& options);

std::string scale_text(const ScaleResult& result);
std::string scale_csv(const ScaleResult& result);
// The document of `switchyard scale --json` (docs/reference/json.md).
Json scale_json(const ScaleResult& result);
std::string scale_html(const ScaleResult& result);  // one self-contained page; needs gnuplot

}  // namespace sy
