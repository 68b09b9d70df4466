// Output of `switchyard scale`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/analyse/plot.h"
#include "src/experiments/document.h"
#include "src/experiments/scale.h"
#include "src/text/table.h"

namespace sy {

std::string scale_text(const ScaleResult& result);
std::string scale_csv(const ScaleResult& result);
// The document of `switchyard scale --json` (docs/reference/json.md).
Json scale_json(const ScaleResult& result);
// One self-contained page with so much of the record. Needs gnuplot.
std::string scale_html(const ScaleResult& result, ProvenanceDetail detail = ProvenanceDetail::brief);

// A chart of the result. Its error bars are the intervals of the points.
struct ScaleFigure {
  std::string name;  // "strong-throughput", for file names
  std::string title;
  LineChart chart;
};
// Returns throughput and efficiency of each kind of scaling. The points are the fastest layouts of
// each number of ranks or nodes. Empty if nothing was measured.
std::vector<ScaleFigure> scale_figures(const ScaleResult& result);
// Returns the names and contents of the files of all figures: LaTeX with pgfplots, and SVG if `svg`
// is true. SVG needs gnuplot. record: the provenance of each file.
std::vector<std::pair<std::string, std::string>> scale_figure_files(const ScaleResult& result, const Json& record,
                                                                    bool svg);

// Fragments that the forms of the output share.
std::string scale_heading(const ScaleResult& result);
// Returns the sentence that names the reference point; empty if there is none.
std::string base_text(const ScaleResult& result);
// Returns sentences about the base, the intervals, the FLOPs, MFU and energy.
std::vector<std::string> scale_notes(const ScaleResult& result);
// Returns a line with the number of rows that this call did not request; empty if there are none.
std::string earlier_text(const ScaleResult& result);
// Step times, with footnotes of warnings.
CellTable time_cells(const ScaleResult& result, Footnotes& notes);
// Throughput, FLOP/s and energy.
CellTable speed_cells(const ScaleResult& result);
// Returns a row for each point with a breakdown: its name, and the share of each time category.
std::vector<std::pair<std::string, std::vector<double>>> breakdown_shares(const ScaleResult& result);
std::vector<std::string> category_names();

}  // namespace sy
