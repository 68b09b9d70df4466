// Text, CSV and JSON of `switchyard scale`.
#include "src/experiments/scale_report.h"

#include <algorithm>
#include <cmath>

#include "src/system/rapl.h"
#include "src/text/numbers.h"

namespace sy {
namespace {

std::string times_text(double x) {
  return std::isfinite(x) ? fmt::format("{:.2f}", x) : "-";
}

std::string digits_text(double x) {
  return std::isfinite(x) ? fmt::format("{:.4g}", x) : "-";
}

// "8.10 ms to 8.31 ms", with the coverage if it is below 95 %.
std::string interval_text(const ScalePoint& p) {
  const auto interval = p.interval();
  if (!interval) return "-";
  return fmt::format("{} to {}{}", seconds_text(interval->low), seconds_text(interval->high),
                     interval->coverage < 0.95 ? fmt::format(" ({})", percent_text(interval->coverage)) : "");
}

// Returns the first cells of a row, which name its point.
std::vector<std::string> point_cells(const ScalePoint& p, const std::string& marks) {
  return {std::to_string(p.layout.ranks), p.layout.short_name() + marks, std::to_string(p.global_batch),
          p.balanced ? "balanced" : "own"};
}

std::vector<std::string> with_point(std::vector<std::string> cells, const std::vector<std::string>& others) {
  cells.insert(cells.end(), others.begin(), others.end());
  return cells;
}

const std::vector<std::string> point_columns = {"ranks", "layout", "batch", "routing"};

Json layout_json(const ScalePoint& p) {
  return {{"ranks", p.layout.ranks},
          {"tp", p.layout.tp},
          {"ep", p.layout.ep},
          {"etp", p.layout.etp},
          {"node", p.layout.ranks_per_node},
          {"dp", p.layout.dp()},
          {"edp", p.layout.edp()},
          {"global_batch", p.global_batch},
          {"micro_batch", p.micro_batch},
          {"tokens_per_step", p.tokens},
          {"balanced", p.balanced}};
}

Json interval_json(const ScalePoint& p) {
  const auto interval = p.interval();
  if (!interval) return {};
  return {{"low", interval->low}, {"high", interval->high}, {"coverage", interval->coverage}};
}

std::string interval_note(const ScaleResult& result) {
  std::size_t fewest = SIZE_MAX;
  for (const ScalePoint& p : result.points)
    if (!p.step_seconds.empty()) fewest = std::min(fewest, p.step_seconds.size());
  if (fewest == SIZE_MAX) return "";
  if (fewest == 1) return "One repeat has no interval: 6 repeats give a 95 % interval of the median.";
  std::string text = "The interval is a 95 % confidence interval of the median step time, by order statistics.";
  if (fewest < 6)
    text += fmt::format(
        " {} repeats are too few for it: the interval is then their range, with its own coverage. 6 repeats are enough.",
        fewest);
  return text;
}

std::string mfu_note(const ScaleResult& result) {
  for (const ScalePoint& p : result.points) {
    if (p.step_seconds.empty()) continue;
    if (const std::string problem = result.mfu_problem(p); !problem.empty()) return "MFU is unknown: " + problem + ".";
    return fmt::format("MFU is relative to the peak of {}, {:.4g} TFLOP/s of each {} in {}.", result.options.peak->name,
                       result.options.peak->peak(result.config.dtype()) / 1e12,
                       result.options.peak->shared ? "node" : "rank",
                       result.config.dtype() == DType::f32 ? "f32" : "bf16");
  }
  return "";
}

// Returns why no point has an energy; empty if one has.
std::string energy_problem(const ScaleResult& result) {
  for (const ScalePoint& p : result.points)
    if (std::isfinite(p.joules_per_token())) return "";
  const std::string problem = rapl_problem();
  return problem.empty() ? "the runs could not read it on all of their hosts: see RUN.log" : problem;
}

std::string energy_note(const ScaleResult& result) {
  if (const std::string problem = energy_problem(result); !problem.empty())
    return "Energy is unknown: " + problem + ".";
  bool cpu = false, gpu = false;
  for (const ScalePoint& p : result.points) {
    cpu = cpu || !p.cpu_joules_per_token.empty();
    gpu = gpu || !p.gpu_joules_per_token.empty();
  }
  return fmt::format("J/token is the energy of {}{}{}, other programs included.",
                     cpu ? "the hosts' processor packages and memory (RAPL)" : "", cpu && gpu ? " and of " : "",
                     gpu ? "the GPUs (NVML)" : "");
}

}  // namespace

std::string scale_heading(const ScaleResult& result) {
  return fmt::format("{}: {} scaling, {} tokens a step on {}", result.name(),
                     result.options.strong && result.options.weak ? "strong and weak"
                     : result.options.weak                        ? "weak"
                                                                  : "strong",
                     count_text(result.points.front().tokens), counted(result.points.front().layout.ranks, "rank"));
}

std::string base_text(const ScaleResult& result) {
  const char* const units = result.options.by_nodes ? "nodes" : "ranks";
  const auto text_of = [&](const ScalePoint& base) {
    return fmt::format("{} on {}, with {} tokens/s", base.layout.short_name(),
                       result.options.by_nodes ? counted(base.nodes, "node") : counted(base.layout.ranks, "rank"),
                       short_count_text(base.tokens_per_second()));
  };
  const ScalePoint *const strong = result.base(Scaling::strong), *const weak = result.base(Scaling::weak);
  if (!strong && !weak) return "";
  if (!strong || !weak || strong == weak)
    return fmt::format(
        "The base of speed-up and efficiency is {}: the fastest layout with unforced routing on the fewest {}.",
        text_of(strong ? *strong : *weak), units);
  return fmt::format(
      "The bases of speed-up and efficiency are {} (strong scaling), and {} (weak scaling): the fastest layouts with "
      "unforced routing on the fewest {}.",
      text_of(*strong), text_of(*weak), units);
}

std::vector<std::string> scale_notes(const ScaleResult& result) {
  std::vector<std::string> notes = {
      base_text(result), interval_note(result),
      fmt::format("A token needs {} model FLOPs; the reference of measures has the definition.",
                  short_count_text(result.flops_per_token)),
      mfu_note(result), energy_note(result)};
  std::erase(notes, "");
  return notes;
}

std::string earlier_text(const ScaleResult& result) {
  const auto rows = std::count_if(result.points.begin(), result.points.end(), [](auto& p) { return !p.requested; });
  if (rows == 0) return "";
  return fmt::format("{} of the rows {} measured by earlier calls, with the same settings in the same environment\n",
                     rows, rows == 1 ? "was" : "were");
}

CellTable time_cells(const ScaleResult& result, Footnotes& notes) {
  CellTable table{with_point(point_columns, {"micro-batch", "step", "interval", "spread", "predicted", "speed-up",
                                             "efficiency", "routing gap"}),
                  {}};
  for (const ScalePoint& p : result.points)
    table.rows.push_back(with_point(
        point_cells(p, notes.marks(result.warnings(p))),
        {std::to_string(p.micro_batch),
         !p.step_seconds.empty() ? seconds_text(p.seconds())
         : p.failure.empty()     ? "-"
                                 : "failed",
         interval_text(p), percent_text(p.spread()), std::isfinite(p.predicted) ? seconds_text(p.predicted) : "-",
         times_text(result.speedup(p)), percent_text(result.efficiency(p)), percent_text(result.routing_gap(p))}));
  return table;
}

CellTable speed_cells(const ScaleResult& result) {
  CellTable table{with_point(point_columns, {"nodes", "tokens/s", "per rank", "per node", "TFLOP/s", "TFLOP/s per rank",
                                             "MFU", "J/token"}),
                  {}};
  for (const ScalePoint& p : result.points)
    table.rows.push_back(
        with_point(point_cells(p, ""),
                   {p.nodes > 0 ? std::to_string(p.nodes) : "-", short_count_text(p.tokens_per_second()),
                    short_count_text(p.tokens_per_second_per_rank()), short_count_text(p.tokens_per_second_per_node()),
                    digits_text(result.tflops_per_second(p)), digits_text(result.tflops_per_second_per_rank(p)),
                    percent_text(result.mfu(p)), digits_text(p.joules_per_token())}));
  return table;
}

// Returns a row for each point with a breakdown: its name, and the share of each time category.
std::vector<std::pair<std::string, std::vector<double>>> breakdown_shares(const ScaleResult& result) {
  std::vector<std::pair<std::string, std::vector<double>>> rows;
  for (const ScalePoint& p : result.points) {
    if (!p.breakdown) continue;
    std::vector<double> shares;
    for (const double seconds : p.breakdown->seconds) shares.push_back(seconds / p.breakdown->total());
    rows.emplace_back(
        fmt::format("{}, {}{}{}", counted(p.layout.ranks, "rank"), p.layout.short_name(),
                    result.options.strong && result.options.weak ? fmt::format(", batch {}", p.global_batch) : "",
                    p.balanced ? ", balanced" : ""),
        shares);
  }
  return rows;
}

std::vector<std::string> category_names() {
  std::vector<std::string> names;
  for (int p = 0; p < num_time_categories; ++p) names.emplace_back(name_of(static_cast<TimeCategory>(p)));
  return names;
}

std::string scale_text(const ScaleResult& result) {
  Footnotes notes;
  std::string text = scale_heading(result) + "\n" + text_table(time_cells(result, notes));
  text += visible(notes.lines("warning "), "\n") + earlier_text(result) + "\n" + text_table(speed_cells(result));
  for (const std::string& note : scale_notes(result)) text += note + "\n";
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
      "ranks,tp,ep,etp,node,dp,global_batch,micro_batch,balanced,step_seconds,spread,predicted_seconds,"
      "tokens_per_second,speedup,efficiency,routing_gap,strong,weak,nodes,repeats,interval_low_seconds,"
      "interval_high_seconds,interval_coverage,tokens_per_second_per_rank,tokens_per_second_per_node,tflops_per_second,"
      "tflops_per_second_per_rank,mfu,joules_per_token\n";
  const auto number = [](double x) { return std::isfinite(x) ? fmt::format("{:.6g}", x) : std::string(); };
  for (const ScalePoint& p : result.points) {
    const auto interval = p.interval();
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},", p.layout.ranks, p.layout.tp, p.layout.ep,
                        p.layout.etp, p.layout.ranks_per_node, p.layout.dp(), p.global_batch, p.micro_batch,
                        p.balanced ? 1 : 0, number(p.seconds()), number(p.spread()), number(p.predicted),
                        number(p.tokens_per_second()), number(result.speedup(p)), number(result.efficiency(p)),
                        number(result.routing_gap(p)));
    text +=
        fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", result.is_strong(p) ? 1 : 0, result.is_weak(p) ? 1 : 0,
                    p.nodes > 0 ? std::to_string(p.nodes) : "", p.step_seconds.size(),
                    number(interval ? interval->low : not_known), number(interval ? interval->high : not_known),
                    number(interval ? interval->coverage : not_known), number(p.tokens_per_second_per_rank()),
                    number(p.tokens_per_second_per_node()), number(result.tflops_per_second(p)),
                    number(result.tflops_per_second_per_rank(p)), number(result.mfu(p)), number(p.joules_per_token()));
  }
  return text;
}

namespace {

Json peak_json(const ScaleResult& result) {
  const double flops = result.options.peak ? result.options.peak->peak(result.config.dtype()) : 0;
  if (flops <= 0) return {};
  return {
      {"machine", result.options.peak->name}, {"flops", flops}, {"of", result.options.peak->shared ? "node" : "rank"}};
}

Json point_json(const ScaleResult& result, const ScalePoint& p) {
  Json seconds, folders = Json::array();
  for (int i = 0; i < num_time_categories && p.breakdown; ++i)
    seconds[name_of(static_cast<TimeCategory>(i))] = p.breakdown->seconds[i];
  for (const Training& run : p.runs) folders.push_back(run.run.string());
  Json point = layout_json(p);
  const Json more = {{"strong", result.is_strong(p)},
                     {"weak", result.is_weak(p)},
                     {"nodes", p.nodes > 0 ? Json(p.nodes) : Json()},
                     {"step_seconds", p.seconds()},
                     {"repeats", p.step_seconds},
                     {"interval", interval_json(p)},
                     {"spread", p.spread()},
                     {"predicted_seconds", p.predicted},
                     {"tokens_per_second", p.tokens_per_second()},
                     {"tokens_per_second_per_rank", p.tokens_per_second_per_rank()},
                     {"tokens_per_second_per_node", p.tokens_per_second_per_node()},
                     {"tflops_per_second", result.tflops_per_second(p)},
                     {"tflops_per_second_per_rank", result.tflops_per_second_per_rank(p)},
                     {"mfu", result.mfu(p)},
                     {"mfu_problem", text_or_null(result.mfu_problem(p))},
                     {"joules_per_token", p.joules_per_token()},
                     {"cpu_joules_per_token", median(p.cpu_joules_per_token)},
                     {"gpu_joules_per_token", median(p.gpu_joules_per_token)},
                     {"speedup", result.speedup(p)},
                     {"efficiency", result.efficiency(p)},
                     {"routing_gap", result.routing_gap(p)},
                     {"parts", seconds},
                     {"requested", p.requested},
                     {"runs", std::move(folders)},
                     {"warnings", result.warnings(p)},
                     {"failure", text_or_null(p.failure)}};
  for (const Json::Member& m : more.members()) point.append(m.name, m.value);
  return point;
}

}  // namespace

Json scale_json(const ScaleResult& result) {
  Json out = json_document("scale", result.provenance);
  out["name"] = result.name();
  out["strong"] = result.options.strong;
  out["weak"] = result.options.weak;
  out["x"] = result.options.by_nodes ? "nodes" : "ranks";
  out["warm_up"] = result.options.warm_up;
  out["steps"] = result.options.steps;
  out["repeats"] = result.options.repeats;
  out["environment"] = result.environment.json();
  out["configuration"] = config_json(result.config);
  out["machine"] = result.options.machine ? machine_json(*result.options.machine) : Json();
  out["flops_per_token"] = result.flops_per_token;
  out["peak"] = peak_json(result);
  out["energy_problem"] = text_or_null(energy_problem(result));
  const ScalePoint *const strong = result.base(Scaling::strong), *const weak = result.base(Scaling::weak);
  const auto base_json = [](const ScalePoint* base) { return base ? layout_json(*base) : Json(); };
  out["base"] = base_json(!strong ? weak : !weak || weak == strong ? strong : nullptr);
  out["bases"] = {{"strong", base_json(strong)}, {"weak", base_json(weak)}};
  Json& points = out["points"] = Json::array();
  for (const ScalePoint& p : result.points) points.push_back(point_json(result, p));
  out["check"] = result.check;
  return out;
}

}  // namespace sy
