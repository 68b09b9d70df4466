// The expert-load report of one checkpoint: as text, CSV, JSON and a page.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/analyse/experts.h"
#include "src/analyse/figures.h"
#include "src/config.h"
#include "src/text/json.h"

namespace sy {

struct LossPoint {
  double step, loss;
};

struct ReportOptions {
  std::optional<Index> layer;                    // this block alone
  std::optional<std::pair<Index, Index>> steps;  // the load of these steps; otherwise of the last tenth of all
};

// Everything that the four forms show.
struct ExpertReport {
  std::filesystem::path checkpoint;
  TrainState state;                      // with the history of the layers asked for
  std::optional<Config> config;          // absent when another version wrote it that has other keys
  Index first = 0, last = 0;             // windows [first, last) make up `load`; none at step 0
  std::vector<LayerLoad> load;           // [layer], empty where there is no window yet
  std::vector<LossPoint> losses;         // from RUN/metrics.jsonl up to the checkpoint's step, where it is there
  std::vector<LossPoint> validations;    // likewise; empty if nothing was validated
  std::optional<Evaluation> evaluation;  // from RUN/evaluation.json, where it is there
  std::vector<Specialisation> specialisation;
  std::vector<Section> sections;  // what else was asked for: comparisons, replays
  Index experts() const { return state.experts.layers * state.experts.experts; }  // of all layers
  double even_share() const { return 1.0 / static_cast<double>(state.experts.experts); }
};

// Reads a checkpoint that resolve_checkpoint has returned, and what lies beside it in its run folder. Throws
// InputError when the model has no experts, when `layer` has none, and when no window meets `steps`.
ExpertReport make_report(const std::filesystem::path& checkpoint, const ReportOptions& options);

// For people. `colour`: marks idle and overloaded experts by terminal colours.
std::string report_text(const ExpertReport& report, bool colour);
// One row per (window, layer, expert); the first line names the columns. The selection bias is that of the last window.
std::string report_csv(const ExpertReport& report);
Json report_json(const ExpertReport& report);
// The load as figures: "load" of all windows, "summary" of the steps that `load` is of.
std::vector<Section> load_sections(const ExpertReport& report);
// Two runs side by side, by layer and over time. The layers are those that both have; throws InputError where there are none,
// or where one of the runs has no counts.
Section comparison(const ExpertReport& a, const ExpertReport& b);
// Returns the reasons why two runs are hard to compare: layers that only one of them has, another
// number of experts, other data.
std::vector<std::string> comparison_warnings(const ExpertReport& a, const ExpertReport& b);
// One self-contained page. Needs gnuplot.
std::string report_html(const ExpertReport& report);

// What to do about a router that has collapsed: in a layer, a quarter of the experts are dead, or the
// entropy is below 0.5, over enough assignments that this is no chance. Both are empty if no layer is
// like that.
struct CollapseAdvice {
  std::string finding;               // "1,018 of 3,072 experts are dead ..."
  std::vector<std::string> changes;  // settings to change, the best first
};
CollapseAdvice collapse_advice(const ExpertReport& report);

// What several forms say in the same words.
std::string model_text(const ExpertReport& report);      // "4 layers, each with 8 experts, 2 chosen per token; ..."
std::string evaluated_at(const Evaluation& evaluation);  // "evaluated at step 200 on 8 of 90 windows"
std::string step_range(const ExpertHistory& history, Index first, Index last);  // "181-200"

}  // namespace sy
