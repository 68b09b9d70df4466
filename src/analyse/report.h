// Expert-load report of one checkpoint, as text, CSV, JSON and a page.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/analyse/experts.h"
#include "src/analyse/figures.h"
#include "src/config.h"
#include "src/provenance/provenance.h"
#include "src/text/json.h"

namespace sy {

struct LossPoint {
  double step, loss;
};

struct ReportOptions {
  // Only this layer: its name by layer_text, or its number, the index of the block. All if empty.
  std::optional<std::string> layer;
  // Steps of the load; the last tenth of all steps if empty.
  std::optional<std::pair<Index, Index>> steps;
};

// Data of all four forms of the report.
struct ExpertReport {
  std::filesystem::path checkpoint;
  TrainState state;                      // with the history of the requested layers
  std::optional<Config> config;          // empty if another version with other keys wrote it
  Index first = 0, last = 0;             // windows [first, last) of `load`; empty at step 0
  std::vector<LayerLoad> load;           // [layer]; empty if there is no window yet
  std::vector<LossPoint> losses;         // RUN/metrics.jsonl up to the checkpoint, if it exists
  std::vector<LossPoint> validations;    // likewise; empty if nothing was validated
  std::optional<Evaluation> evaluation;  // RUN/evaluation.json, if it exists
  std::vector<Specialisation> specialisation;
  Json provenance = {};           // record of the call that reports; may be null
  std::vector<Section> sections;  // further requested results: comparisons, replays
  Index experts() const { return state.experts.layers * state.experts.experts; }  // sum over layers
  double even_share() const { return 1.0 / static_cast<double>(state.experts.experts); }
};

// Reads a checkpoint that resolve_checkpoint has returned, and the files of its run folder. Throws
// InputError if the model has no experts, if `layer` has none, or if no window meets `steps`.
ExpertReport make_report(const std::filesystem::path& checkpoint, const ReportOptions& options);

// Text for a terminal. `colour`: marks idle and overloaded experts by terminal colours.
std::string report_text(const ExpertReport& report, bool colour);
// One row per (window, layer, expert); the first line names the columns. The selection bias is the
// one of the last window.
std::string report_csv(const ExpertReport& report);
Json report_json(const ExpertReport& report);
// The load as figures: the section "load" has all windows, and "summary" the steps of report.load.
std::vector<Section> load_sections(const ExpertReport& report);
// Compares two runs by layer and over time. It covers the layers whose names both runs have.
// Throws InputError if there are none, or if one of the runs has no counts.
Section comparison(const ExpertReport& a, const ExpertReport& b);
// Returns the reasons why two runs are hard to compare: layers that only one of them has, another
// number of experts, other data.
std::vector<std::string> comparison_warnings(const ExpertReport& a, const ExpertReport& b);
// One self-contained page with so much of the record. Needs gnuplot.
std::string report_html(const ExpertReport& report, ProvenanceDetail detail = ProvenanceDetail::brief);

// Advice against a collapsed router. Both members are empty if no layer has collapsed.
// A layer has collapsed if a quarter of its experts are dead or its entropy is below 0.5. It must
// have enough assignments that this is not chance. `finding` does not count other layers.
struct CollapseAdvice {
  std::string finding;               // "1,018 of 3,072 experts are dead ..."
  std::vector<std::string> changes;  // settings to change, the best first
};
CollapseAdvice collapse_advice(const ExpertReport& report);

// Name of a layer: its number, "encoder 3" in an encoder-decoder, or "module 1" of multi-token
// prediction. `layer` is the index of the block.
std::string layer_text(const ExpertReport& report, Index layer);
// The MoE layers as a dimension of figures, with their names.
Dimension layer_dimension(const ExpertReport& report);
// Phrases that several forms of the report share.
// "3 (12.5 %)"
std::string expert_and_share(const LayerLoad& layer, Index expert);
// "+0.0125"; "-" if unknown
std::string gap_text(const ExpertLoad& expert);
// "german and japanese"; "-" if there is no pair.
std::string domain_pair(const Specialisation& s);
// "4 layers, each with 8 experts, 2 chosen per token; ..."
std::string model_text(const ExpertReport& report);
// "evaluated at step 200 on 8 of 90 windows"
std::string evaluated_at(const Evaluation& evaluation);
// "181-200"
std::string step_range(const ExpertHistory& history, Index first, Index last);

}  // namespace sy
