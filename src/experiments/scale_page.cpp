// Charts and page of `switchyard scale`.
#include <algorithm>
#include <map>

#include "src/analyse/page.h"
#include "src/experiments/scale_report.h"
#include "src/text/numbers.h"

namespace sy {
namespace {

// Texts of a kind of scaling.
struct ScalingTexts {
  Scaling kind;
  const char *name, *title, *batch;
};
constexpr ScalingTexts scalings[] = {
    {Scaling::strong, "strong", "Strong scaling", "The global batch is the same on all ranks."},
    {Scaling::weak, "weak", "Weak scaling", "The global batch grows with the ranks."}};

// Returns the fastest point of each number of ranks or nodes, with unforced or balanced routing.
std::map<double, const ScalePoint*> fastest(const ScaleResult& result, Scaling kind, bool balanced) {
  std::map<double, const ScalePoint*> best;
  for (const ScalePoint& p : result.points) {
    if (p.balanced != balanced || p.step_seconds.empty() || !result.is_of(kind, p)) continue;
    if (result.units(p) <= 0) continue;
    const ScalePoint*& there = best[result.units(p)];
    if (!there || p.tokens_per_second() > there->tokens_per_second()) there = &p;
  }
  return best;
}

// Returns the lines of both routings, and the ideal line. value: of a point. ideal: value of the
// ideal line by the ratio of units to those of the base.
template <class Value, class Ideal>
LineChart chart_of(const ScaleResult& result, Scaling kind, const Value& value, const Ideal& ideal) {
  LineChart chart;
  chart.x_label = result.options.by_nodes ? "nodes" : "ranks";
  chart.log_x = true;
  const ScalePoint* const base = result.base(kind);
  if (!base) return chart;
  Line ideal_line{.name = "ideal", .x = {}, .y = {}, .series = Series::ideal};
  for (const bool balanced : {false, true}) {
    Line line{.name = balanced ? "balanced routing" : "its own routing",
              .x = {},
              .y = {},
              .series = balanced ? Series::balanced_routing : Series::own_routing};
    for (const auto& [units, point] : fastest(result, kind, balanced)) {
      const auto interval = point->interval();
      line.x.push_back(units);
      line.y.push_back(value(*point));
      // Both values are proportional to tokens/s, that is, to the inverse of the step time.
      line.low.push_back(interval ? line.y.back() * point->seconds() / interval->high : not_known);
      line.high.push_back(interval ? line.y.back() * point->seconds() / interval->low : not_known);
      if (std::ranges::find(ideal_line.x, units) == ideal_line.x.end()) ideal_line.x.push_back(units);
    }
    if (!line.x.empty()) chart.lines.push_back(std::move(line));
  }
  if (chart.lines.empty()) return chart;
  std::ranges::sort(ideal_line.x);
  for (const double units : ideal_line.x) ideal_line.y.push_back(ideal(units / result.units(*base)));
  chart.lines.push_back(std::move(ideal_line));
  for (std::size_t i = 0; i < chart.lines.size(); ++i) chart.depths.push_back(static_cast<double>(i));
  return chart;
}

void add_breakdown(const ScaleResult& result, Page& page) {
  const auto shares = breakdown_shares(result);
  if (shares.empty()) return;
  Heatmap map;
  map.rows = std::ssize(shares);
  map.columns = num_time_categories;
  map.column_names = category_names();
  map.percent = true;
  map.longest_name = 56;  // layouts differ at their ends
  for (const auto& [name, values] : shares) {
    map.row_names.push_back(name);
    for (const double share : values) {
      map.values.push_back(share);
      map.cell_texts.push_back(percent_text(share));
    }
  }
  page.section("parts", "Where the time of a step goes");
  page.picture(
      map, "where the time of a step goes",
      "Where the time of a step goes: the mean over ranks of traced steps. tensor: tensor parallelism's collectives; "
      "gradients: those of gradients and weights; waiting: in collectives, beyond the rank that spends least in those "
      "of the same kind; compute: all else.");
  page << "</section>\n";
}

void add_tables(const ScaleResult& result, Page& page) {
  Footnotes notes;
  page.section("points", "All layouts");
  page << html_table(time_cells(result, notes), 1);
  for (std::size_t i = 0; i < notes.texts().size(); ++i)
    page << fmt::format("<p>Warning [{}]: {}</p>\n", i + 1, escaped(notes.texts()[i]));
  page << "<p>" + escaped(earlier_text(result)) + "</p>\n" << html_table(speed_cells(result), 1) << "</section>\n";
}

}  // namespace

std::vector<ScaleFigure> scale_figures(const ScaleResult& result) {
  std::vector<ScaleFigure> figures;
  const std::string of =
      fmt::format("of the fastest layout of each number of {}", result.options.by_nodes ? "nodes" : "ranks");
  for (const ScalingTexts& scaling : scalings) {
    const ScalePoint* const base = result.base(scaling.kind);
    LineChart throughput = chart_of(
        result, scaling.kind, [](const ScalePoint& p) { return p.tokens_per_second(); },
        [&](double ratio) { return ratio * base->tokens_per_second(); });
    if (throughput.lines.empty()) continue;
    throughput.y_label = "tokens/s";
    throughput.log_y = true;
    LineChart efficiency = chart_of(
        result, scaling.kind, [&](const ScalePoint& p) { return result.efficiency(p); }, [](double) { return 1.0; });
    efficiency.y_label = "efficiency";
    efficiency.percent = true;
    efficiency.y_low = 0;
    figures.push_back({fmt::format("{}-throughput", scaling.name), "Throughput " + of, std::move(throughput)});
    figures.push_back({fmt::format("{}-efficiency", scaling.name), "Efficiency " + of, std::move(efficiency)});
  }
  return figures;
}

std::vector<std::pair<std::string, std::string>> scale_figure_files(const ScaleResult& result, const Json& record,
                                                                    bool svg) {
  std::vector<std::pair<std::string, std::string>> files;
  const std::vector<ScaleFigure> figures = scale_figures(result);
  std::vector<Plot> plots;
  for (const ScaleFigure& figure : figures) {
    std::vector<std::string> comments = {result.name() + ": " + figure.title, base_text(result)};
    if (!record.is_null()) comments.push_back(record.dump());
    files.emplace_back(fmt::format("{}-{}.tex", result.name(), figure.name), pgf_of(figure.chart, comments));
    plots.push_back(plot_of(figure.chart));
  }
  if (!svg) return files;
  const std::vector<std::string> pictures = draw(plots);
  for (std::size_t i = 0; i < pictures.size(); ++i)
    files.emplace_back(fmt::format("{}-{}.svg", result.name(), figures[i].name),
                       svg_document(pictures[i], figures[i].title + ". " + base_text(result), record));
  return files;
}

std::string scale_html(const ScaleResult& result, ProvenanceDetail detail) {
  Page page("Scaling of " + result.name());
  page
      << "<h1>" + escaped("Scaling of " + result.name()) + "</h1>\n<p>" + escaped(scale_heading(result)) +
             ". A step's time is the median over the measured steps of a run, and over the runs; the spread is that of "
             "the runs' medians. The routing gap is how much longer a step takes than with tokens sent to all experts "
             "in turn.</p>\n<ul>";
  for (const std::string& note : scale_notes(result)) page << "<li>" + escaped(note) + "</li>\n";
  const Environment& where = result.environment;
  page << "</ul>\n"
       << fmt::format("<p class=\"muted\">{}</p>\n",
                      escaped(fmt::format(
                          "Measured on {}: instruction set {}, OMP_NUM_THREADS {}, switchyard {}, started by {}",
                          where.host, where.instruction_set, where.threads, where.build, where.launcher)));
  const std::vector<ScaleFigure> figures = scale_figures(result);
  for (const auto& [kind, name, title, batch] : scalings) {
    const std::string begin = fmt::format("{}-", name);
    if (std::ranges::none_of(figures, [&](const ScaleFigure& f) { return f.name.starts_with(begin); })) continue;
    page.section(name, title);
    page << fmt::format("<p>{} Bars are the intervals of the step times.</p>\n", batch);
    for (const ScaleFigure& f : figures)
      if (f.name.starts_with(begin))
        page.picture(f.chart, fmt::format("{} by number of {}, {} scaling", f.chart.y_label, f.chart.x_label, name),
                     f.title);
    page << "</section>\n";
  }
  add_breakdown(result, page);
  add_tables(result, page);
  page << provenance_html(result.provenance, detail);
  return page.finish();
}

}  // namespace sy
