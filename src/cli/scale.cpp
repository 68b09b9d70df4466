// switchyard scale: speed of a training on other numbers of ranks and layouts.
#include "src/experiments/scale.h"

#include <algorithm>
#include <optional>

#include "dist/runtime.h"
#include "src/cli/options.h"
#include "src/cli/plan_options.h"
#include "src/data/dataset.h"
#include "src/experiments/scale_check.h"
#include "src/experiments/scale_report.h"
#include "src/system/files.h"
#include "src/system/new_folders.h"
#include "src/train/stop.h"

namespace sy {

int scale_command(CommandLine& line) {
  po::options_description options(
      "Trains CONFIG for some steps on each number of ranks and each layout, and reports step times, speed-up and efficiency:\n"
      "a table, OUTPUT/CONFIG.csv, .json, a page with pictures, .html, and OUTPUT/figures for papers (SVG, and LaTeX with\n"
      "pgfplots). With experts, each layout is measured with the routing that the model has and with a forced balanced one.\n"
      "What has been measured is not measured again.\n\nOptions");
  std::string ranks, layouts = "auto", output = "runs/scale", x = "ranks", check_file;
  double check_percent = 10;
  ScaleOptions scale_options;
  bool own_only = false, check_any = false, strong = false;
  // clang-format off
  options.add_options()
      ("ranks", po::value(&ranks)->required(), "1,2,4: the numbers of ranks")
      ("layouts", po::value(&layouts)->default_value(layouts),
       "auto: all that fit, by nodes too if --machine or parallel.ranks_per_node gives their ranks; or some, as in "
       "tp2-ep4,ep16-node8")
      ("strong", po::bool_switch(&strong), "the batch stays the configuration's; the default without --weak")
      ("weak", po::bool_switch(&scale_options.weak),
       "the batch grows with the ranks, from the configuration's on the fewest; with --strong, both are measured")
      ("x", po::value(&x)->default_value(x), "ranks or nodes: speed-up, efficiency and pictures compare numbers of these")
      ("own-routing-only", po::bool_switch(&own_only), "without forced balanced routing")
      ("warm-up", po::value(&scale_options.warm_up)->default_value(scale_options.warm_up), "steps before those that are measured")
      ("steps", po::value(&scale_options.steps)->default_value(scale_options.steps), "measured steps of each run")
      ("repeats", po::value(&scale_options.repeats)->default_value(scale_options.repeats), "runs of each point; 6 are the fewest with a 95 % interval of the median")
      ("output", po::value(&output)->default_value(output), "the folder of runs and results")
      ("check", po::value(&check_file), "an earlier OUTPUT/CONFIG.json: exit code 1 if the tokens/s of a point fell")
      ("check-limit", po::value(&check_percent)->default_value(check_percent, "10"), "by how many percent it must fall for that")
      ("check-any", po::bool_switch(&check_any), "compare with a result of another environment or configuration, too")
      ("json", po::bool_switch(), "print the result as JSON");
  // clang-format on
  add_launcher_option(options, scale_options.launcher);
  add_plan_options(options);
  add_provenance_option(options);
  ErrorList errors("scale");
  po::variables_map arguments;
  if (!parse_options(line, "scale", options, {"config"}, arguments, errors, &scale_options.settings)) return 0;
  errors.run([] { starts_ranks_itself("scale"); });
  bool layouts_known = has_value(arguments, "ranks") && errors.run([&] { scale_options.ranks = parse_ranks(ranks); });
  std::sort(scale_options.ranks.begin(), scale_options.ranks.end());
  scale_options.ranks.erase(std::unique(scale_options.ranks.begin(), scale_options.ranks.end()),
                            scale_options.ranks.end());
  if (scale_options.steps < 1 || scale_options.warm_up < 0 || scale_options.repeats < 1)
    errors.add("--steps and --repeats are at least 1, and --warm-up at least 0");
  if (std::max(scale_options.steps, scale_options.warm_up) > max_scale_steps)
    errors.add("scale: --steps {} and --warm-up {}: give at most {} of each", scale_options.steps,
               scale_options.warm_up, max_scale_steps);
  errors.run([&] { check_launcher(scale_options.launcher, scale_options.ranks); });
  if (x != "ranks" && x != "nodes") errors.add("scale: --x {}: give ranks or nodes", x);
  if (!(check_percent > 0 && check_percent < 100))
    errors.add("scale: --check-limit {}: give a number of percent above 0 and below 100", check_percent);
  if (check_file.empty() && (check_any || !arguments["check-limit"].defaulted()))
    errors.add("scale: --check-limit and --check-any go with --check FILE");
  scale_options.strong = strong || !scale_options.weak;
  scale_options.by_nodes = x == "nodes";
  if (layouts != "auto") layouts_known &= errors.run([&] { scale_options.layouts = parse_layouts(layouts, 1); });
  scale_options.balanced = !own_only;
  scale_options.output = output;
  if (arguments.count("load") && !arguments.count("machine"))
    errors.add("scale: --load goes with --machine: it is for what `plan` predicts");
  PlanOptions plan;
  std::vector<ConfigCheck> checks{{check_data_path}};
  read_plan_options(arguments, plan, checks, errors);
  scale_options.machine = plan.machine;
  Json earlier;
  if (!check_file.empty()) errors.run([&] { earlier = read_scale_json(check_file); });
  if (layouts_known) checks.push_back({[&](const Config& c) { scale_layouts(c, scale_options); }, true});
  std::vector<std::string> warnings;
  if (has_value(arguments, "config")) {
    scale_options.config = arguments["config"].as<std::string>();
    scale_options.peak = plan.machine;
    errors.run([&] {
      const Config config = read_config(scale_options.config, scale_options.settings, checks, nullptr, &warnings);
      if (!scale_options.peak && !config.run.machine.empty())
        scale_options.peak = read_machine(config.run.machine, scale_options.config, "run.machine =");
    });
    const std::filesystem::path written = scale_options.output / (scale_options.config.stem().string() + ".json");
    std::error_code none;
    if (!check_file.empty() && std::filesystem::equivalent(check_file, written, none))
      errors.add("scale: --check {} is the file that this call writes: copy it first, and give the copy", check_file);
  }
  const ProvenanceDetail detail = provenance_detail(arguments, errors);
  errors.raise();
  for (const std::string& text : warnings) warn(text);
  scale_options.load = std::move(plan.load);
  install_stop_handlers();
  ScaleResult result = plan_scale(scale_options);
  if (!check_file.empty() && !check_any) check_comparable(earlier, result, check_file);
  // Throws before the measurements if no point matches. They do not change which points do.
  if (!check_file.empty()) compare_scale(earlier, result, check_file, check_percent / 100);
  if (!measure_scale(result)) return report_stop();
  std::optional<ScaleComparison> comparison;
  if (!check_file.empty()) {
    comparison = compare_scale(earlier, result, check_file, check_percent / 100);
    result.check = comparison_json(*comparison);
  }
  std::vector<Training> runs;
  for (const ScalePoint& point : result.points) runs.insert(runs.end(), point.runs.begin(), point.runs.end());
  result.provenance = with_runs(with_inputs(line.provenance, to_ini(result.config), ""), runs);
  const std::filesystem::path out = scale_options.output / result.name();
  write_file(out.string() + ".csv", csv_with_provenance(scale_csv(result), record_for(result.provenance, detail)));
  write_file(out.string() + ".json", json_text(scale_json(result)));
  bool svg = true;
  try {
    write_file(out.string() + ".html", scale_html(result, detail));
  } catch (const Failure& e) {
    svg = false;
    warn(fmt::format("no page: {}", e.what()));
  }
  make_synced_folders(scale_options.output / "figures");
  for (const auto& [name, content] : scale_figure_files(result, record_for(result.provenance, detail), svg))
    write_file(scale_options.output / "figures" / name, content);
  if (arguments["json"].as<bool>())
    fmt::print("{}", json_text(scale_json(result)));
  else
    fmt::print("{}", scale_text(result));
  if (comparison) fmt::print(arguments["json"].as<bool>() ? stderr : stdout, "\n{}", comparison_text(*comparison));
  if (comparison && comparison->fell()) return 1;
  return std::ranges::any_of(result.points, [](const ScalePoint& p) { return !p.failure.empty(); }) ? 1 : 0;
}

}  // namespace sy
