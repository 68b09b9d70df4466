// switchyard scale: speed of a training on other numbers of ranks and layouts.
#include "src/experiments/scale.h"

#include <algorithm>

#include "dist/runtime.h"
#include "src/cli/experiment.h"
#include "src/cli/plan_options.h"
#include "src/data/dataset.h"
#include "src/experiments/run_records.h"
#include "src/system/files.h"

namespace sy {

int scale_command(CommandLine& line) {
  po::options_description options(
      "Trains CONFIG for some steps on each number of ranks and each layout, and reports step times, speed-up and efficiency:\n"
      "a table, OUTPUT/CONFIG.csv, .json and a page with pictures, .html. With experts, each layout is measured with the\n"
      "routing that the model has and with a forced balanced one. What has been measured is not measured again.\n\nOptions");
  std::string ranks, layouts = "auto", output = "runs/scale";
  ScaleOptions scale_options;
  bool own_only = false;
  // clang-format off
  options.add_options()
      ("ranks", po::value(&ranks)->required(), "1,2,4: the numbers of ranks")
      ("layouts", po::value(&layouts)->default_value(layouts),
       "auto: all that fit, by nodes too if --machine or parallel.ranks_per_node gives their ranks; or some, as in "
       "tp2-ep4,ep16-node8")
      ("weak", po::bool_switch(&scale_options.weak), "the batch grows with the ranks, from the configuration's on the fewest")
      ("own-routing-only", po::bool_switch(&own_only), "without forced balanced routing")
      ("warm-up", po::value(&scale_options.warm_up)->default_value(scale_options.warm_up), "steps before those that are measured")
      ("steps", po::value(&scale_options.steps)->default_value(scale_options.steps), "measured steps of each run")
      ("repeats", po::value(&scale_options.repeats)->default_value(scale_options.repeats), "runs of each point")
      ("output", po::value(&output)->default_value(output), "the folder of runs and results")
      ("json", po::bool_switch(), "print the result as JSON");
  // clang-format on
  add_launcher_option(options, scale_options.launcher);
  add_plan_options(options);
  add_provenance_option(options);
  ErrorList errors("scale");
  CommandLine rest{line.world, take_settings("scale", line.args, scale_options.settings, errors, options),
                   line.options};
  po::variables_map arguments;
  if (!parse_options(rest, "scale", options, {"config"}, arguments, errors)) return 0;
  errors.run([] { starts_ranks_itself("scale"); });
  bool layouts_known = has_value(arguments, "ranks") && errors.run([&] { scale_options.ranks = parse_ranks(ranks); });
  std::sort(scale_options.ranks.begin(), scale_options.ranks.end());
  scale_options.ranks.erase(std::unique(scale_options.ranks.begin(), scale_options.ranks.end()),
                            scale_options.ranks.end());
  if (scale_options.steps < 1 || scale_options.warm_up < 0 || scale_options.repeats < 1)
    errors.add("--steps and --repeats are at least 1, and --warm-up at least 0");
  if (layouts != "auto") layouts_known &= errors.run([&] { scale_options.layouts = parse_layouts(layouts, 1); });
  scale_options.balanced = !own_only;
  scale_options.output = output;
  if (arguments.count("load") && !arguments.count("machine"))
    errors.add("scale: --load goes with --machine: it is for what `plan` predicts");
  PlanOptions plan;
  std::vector<ConfigCheck> checks{{check_data_path}};
  read_plan_options(arguments, plan, checks, errors);
  scale_options.machine = plan.machine;
  if (layouts_known) checks.push_back({[&](const Config& c) { scale_layouts(c, scale_options); }, true});
  std::vector<std::string> warnings;
  if (has_value(arguments, "config")) {
    scale_options.config = arguments["config"].as<std::string>();
    errors.run([&] { read_config(scale_options.config, scale_options.settings, checks, nullptr, &warnings); });
  }
  const ProvenanceDetail detail = provenance_detail(arguments, errors);
  errors.raise();
  for (const std::string& text : warnings) warn(text);
  scale_options.load = std::move(plan.load);
  install_stop_handlers();
  ScaleResult result = plan_scale(scale_options);
  if (!measure_scale(result, scale_options)) return report_stop();
  std::vector<Training> runs;
  for (const ScalePoint& point : result.points) runs.insert(runs.end(), point.runs.begin(), point.runs.end());
  result.provenance = with_runs(with_inputs(line.provenance, to_ini(result.config), ""), runs);
  const std::filesystem::path out = scale_options.output / result.name;
  write_file(out.string() + ".csv", csv_with_provenance(scale_csv(result), record_for(result.provenance, detail)));
  write_file(out.string() + ".json", json_text(scale_json(result)));
  try {
    write_file(out.string() + ".html", scale_html(result, detail));
  } catch (const Failure& e) {
    warn(fmt::format("no page: {}", e.what()));
  }
  if (arguments["json"].as<bool>())
    fmt::print("{}", json_text(scale_json(result)));
  else
    fmt::print("{}", scale_text(result));
  return std::any_of(result.points.begin(), result.points.end(), [](const ScalePoint& p) { return !p.failure.empty(); })
             ? 1
             : 0;
}

}  // namespace sy
