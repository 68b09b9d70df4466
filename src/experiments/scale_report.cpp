// Output of `switchyard scale`.
#include <algorithm>
#include <cmath>
#include <map>

#include "src/analyse/page.h"
#include "src/analyse/plot.h"
#include "src/experiments/document.h"
#include "src/experiments/footnotes.h"
#include "src/experiments/scale.h"
#include "src/text/numbers.h"
#include "src/text/table.h"

namespace sy {
namespace {

const std::vector<std::string> scale_columns = {"ranks",    "layout",     "micro-batch", "routing",
                                                "step",     "spread",     "predicted",   "tokens/s",
                                                "speed-up", "efficiency", "routing gap"};

std::string times_text(double x) {
  return std::isfinite(x) ? fmt::format("{:.2f}", x) : "-";
}

std::vector<std::string> scale_cells(const ScaleResult& result, const ScalePoint& p, Footnotes& notes) {
  const bool known = !p.step_seconds.empty();
  return {std::to_string(p.layout.ranks),
          p.layout.short_name() + notes.marks(result.warnings(p)),
          std::to_string(p.micro_batch),
          p.balanced ? "balanced" : "own",
          known               ? seconds_text(p.seconds())
          : p.failure.empty() ? "-"
                              : "failed",
          percent_text(p.spread()),
          std::isfinite(p.predicted) ? seconds_text(p.predicted) : "-",
          short_count_text(p.tokens_per_second()),
          times_text(result.speedup(p)),
          percent_text(result.efficiency(p)),
          percent_text(result.routing_gap(p))};
}

std::string heading(const ScaleResult& result) {
  return fmt::format("{}: {} scaling, {} tokens a step on {}", result.name, result.weak ? "weak" : "strong",
                     count_text(result.points.front().tokens), counted(result.points.front().layout.ranks, "rank"));
}

// Returns a note on the number of rows that this call did not request.
std::string earlier_text(const ScaleResult& result) {
  const auto rows = std::count_if(result.points.begin(), result.points.end(), [](auto& p) { return !p.requested; });
  if (rows == 0) return "";
  return fmt::format("{} of the rows {} measured by earlier calls, with the same settings in the same environment\n",
                     rows, rows == 1 ? "was" : "were");
}

// Returns the fastest point of each number of ranks, with unforced or with balanced routing.
std::map<int, const ScalePoint*> fastest(const ScaleResult& result, bool balanced) {
  std::map<int, const ScalePoint*> best;
  for (const ScalePoint& p : result.points) {
    if (p.balanced != balanced || p.step_seconds.empty()) continue;
    const ScalePoint*& there = best[p.layout.ranks];
    if (!there || p.seconds() < there->seconds()) there = &p;
  }
  return best;
}

// Returns a row for each point with a breakdown: its name, and the share of each time category.
std::vector<std::pair<std::string, std::vector<double>>> breakdown_shares(const ScaleResult& result) {
  std::vector<std::pair<std::string, std::vector<double>>> rows;
  for (const ScalePoint& p : result.points) {
    if (!p.breakdown) continue;
    std::vector<double> shares;
    for (const double seconds : p.breakdown->seconds) shares.push_back(seconds / p.breakdown->total());
    rows.emplace_back(
        fmt::format("{}, {}{}", counted(p.layout.ranks, "rank"), p.layout.short_name(), p.balanced ? ", balanced" : ""),
        shares);
  }
  return rows;
}

std::vector<std::string> category_names() {
  std::vector<std::string> names;
  for (int p = 0; p < num_time_categories; ++p) names.emplace_back(name_of(static_cast<TimeCategory>(p)));
  return names;
}

}  // namespace

std::string scale_text(const ScaleResult& result) {
  Table table(scale_columns);
  Footnotes notes;
  for (const ScalePoint& p : result.points) table.row(scale_cells(result, p, notes));
  std::string text =
      heading(result) + "\n" + table.str() + visible(notes.lines("warning "), "\n") + earlier_text(result);
  const auto rows = breakdown_shares(result);
  std::vector<std::string> header = category_names();
  header.insert(header.begin(), "share of a step");
  Table breakdown(header);
  for (const auto& [name, shares] : rows) {
    std::vector<std::string> cells{name};
    for (const double share : shares) cells.push_back(percent_text(share));
    breakdown.row(cells);
  }
  if (!rows.empty()) text += "\n" + breakdown.str();
  for (const ScalePoint& p : result.points)
    if (!p.failure.empty()) text += fmt::format("{} failed: {}\n", p.runs.front().label, p.failure);
  return text;
}

std::string scale_csv(const ScaleResult& result) {
  std::string text =
      "ranks,tp,ep,etp,node,dp,global_batch,micro_batch,balanced,step_seconds,spread,predicted_seconds,tokens_per_second,speedup,efficiency,"
      "routing_gap\n";
  const auto number = [](double x) { return std::isfinite(x) ? fmt::format("{:.6g}", x) : std::string(); };
  for (const ScalePoint& p : result.points)
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", p.layout.ranks, p.layout.tp, p.layout.ep,
                        p.layout.etp, p.layout.ranks_per_node, p.layout.dp(), p.global_batch, p.micro_batch,
                        p.balanced ? 1 : 0, number(p.seconds()), number(p.spread()), number(p.predicted),
                        number(p.tokens_per_second()), number(result.speedup(p)), number(result.efficiency(p)),
                        number(result.routing_gap(p)));
  return text;
}

Json scale_json(const ScaleResult& result) {
  Json out = json_document("scale", result.provenance);
  out["name"] = result.name;
  out["weak"] = result.weak;
  out["warm_up"] = result.warm_up;
  out["steps"] = result.steps;
  out["repeats"] = result.repeats;
  out["environment"] = result.environment.json();
  out["configuration"] = config_json(result.config);
  out["machine"] = result.machine ? machine_json(*result.machine) : Json();
  Json& points = out["points"] = Json::array();
  for (const ScalePoint& p : result.points) {
    Json seconds, folders = Json::array();
    for (int i = 0; i < num_time_categories && p.breakdown; ++i)
      seconds[name_of(static_cast<TimeCategory>(i))] = p.breakdown->seconds[i];
    for (const Training& run : p.runs) folders.push_back(run.run.string());
    points.push_back({{"ranks", p.layout.ranks},
                      {"tp", p.layout.tp},
                      {"ep", p.layout.ep},
                      {"etp", p.layout.etp},
                      {"node", p.layout.ranks_per_node},
                      {"dp", p.layout.dp()},
                      {"edp", p.layout.edp()},
                      {"global_batch", p.global_batch},
                      {"micro_batch", p.micro_batch},
                      {"tokens_per_step", p.tokens},
                      {"balanced", p.balanced},
                      {"step_seconds", p.seconds()},
                      {"repeats", p.step_seconds},
                      {"spread", p.spread()},
                      {"predicted_seconds", p.predicted},
                      {"tokens_per_second", p.tokens_per_second()},
                      {"speedup", result.speedup(p)},
                      {"efficiency", result.efficiency(p)},
                      {"routing_gap", result.routing_gap(p)},
                      {"parts", seconds},
                      {"requested", p.requested},
                      {"runs", std::move(folders)},
                      {"warnings", result.warnings(p)},
                      {"failure", p.failure.empty() ? Json() : Json(p.failure)}});
  }
  return out;
}

std::string scale_html(const ScaleResult& result, ProvenanceDetail detail) {
  Page page("Scaling of " + result.name);
  page
      << "<h1>" + escaped("Scaling of " + result.name) + "</h1>\n<p>" + escaped(heading(result)) +
             ". A step's time is the median over the measured steps of a run, and over the runs; the spread is that of the "
             "runs' medians. Speed-up and efficiency are against the fastest layout of the fewest ranks. The routing gap is "
             "how much longer a step takes than with tokens sent to all experts in turn.</p>";
  const Environment& where = result.environment;
  page << fmt::format(
      "<p class=\"muted\">{}</p>\n",
      escaped(fmt::format("Measured on {}: instruction set {}, OMP_NUM_THREADS {}, switchyard {}, started by {}",
                          where.host, where.instruction_set, where.threads, where.build, where.launcher)));
  // ideal: the ideal value for a ratio of the numbers of ranks.
  const auto chart = [&](const char* title, const char* label, bool percent, auto value, auto ideal) {
    LineChart c;
    c.x_label = "ranks";
    c.y_label = label;
    c.percent = percent;
    c.y_low = 0;
    for (const bool balanced : {false, true}) {
      Line line{balanced ? "balanced routing" : "its own routing",
                {},
                {},
                balanced ? Series::balanced_routing : Series::own_routing};
      for (const auto& [ranks, point] : fastest(result, balanced)) {
        line.x.push_back(ranks);
        line.y.push_back(value(*point));
      }
      if (!line.x.empty()) c.lines.push_back(std::move(line));
    }
    if (c.lines.empty()) return;
    Line line{"ideal", c.lines.front().x, {}, Series::ideal};
    for (const double ranks : line.x) line.y.push_back(ideal(ranks / line.x.front()));
    c.lines.push_back(std::move(line));
    for (std::size_t i = 0; i < c.lines.size(); ++i) c.depths.push_back(static_cast<double>(i));
    page.section(label, title);
    page.picture(c, fmt::format("{} by number of ranks", label),
                 fmt::format("{} of the fastest layout of each number of ranks", title));
    page << "</section>\n";
  };
  chart(
      "Speed-up", "speed-up", false, [&](const ScalePoint& p) { return result.speedup(p); },
      [](double x) { return x; });
  chart(
      "Efficiency", "efficiency", true, [&](const ScalePoint& p) { return result.efficiency(p); },
      [](double) { return 1.0; });
  if (const auto shares = breakdown_shares(result); !shares.empty()) {
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
  std::vector<std::vector<std::string>> rows;
  Footnotes notes;
  for (const ScalePoint& p : result.points) rows.push_back(scale_cells(result, p, notes));
  page.section("points", "All layouts");
  page << html_table(scale_columns, rows, 1);
  for (std::size_t i = 0; i < notes.texts().size(); ++i)
    page << fmt::format("<p>Warning [{}]: {}</p>\n", i + 1, escaped(notes.texts()[i]));
  page << "<p>" + escaped(earlier_text(result)) + "</p></section>\n" << provenance_html(result.provenance, detail);
  return page.finish();
}

}  // namespace sy
