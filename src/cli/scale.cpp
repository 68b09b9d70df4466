// switchyard scale: speed of a training on other numbers of ranks and layouts.
#include "src/experiments/scale.h"

#include <algorithm>

#include "dist/runtime.h"
#include "src/cli/experiment.h"
#include "src/cli/plan_options.h"
#include "src/data/dataset.h"
#include "src/system/files.h"
#include "src/text/words.h"

namespace sy {

int scale_command(CommandLine& line) {
  po::options_description options(
      "Trains CONFIG for some steps on each number of ranks and each layout, and tells step times, speed-up and efficiency:\n"
      "a table, OUTPUT/CONFIG.csv, .json and a page with pictures, .html. With experts, each layout is measured with the\n"
      "routing that the model has and with a forced balanced one. What has been measured is not measured again.\n\nOptions");
  std::string ranks, layouts = "auto", output = "runs/scale";
  ScaleOptions how;
  bool own_only = false;
  // clang-format off
  options.add_options()
      ("ranks", po::value(&ranks)->required(), "1,2,4: the numbers of ranks")
      ("layouts", po::value(&layouts)->default_value(layouts),
       "auto: all that fit, by nodes too where --machine or parallel.node tells their ranks; or some, as in "
       "tp2-ep4,ep16-node8")
      ("weak", po::bool_switch(&how.weak), "the batch grows with the ranks, from the configuration's on the fewest")
      ("own-routing-only", po::bool_switch(&own_only), "without forced balanced routing")
      ("warm-up", po::value(&how.warm_up)->default_value(how.warm_up), "steps before those that are measured")
      ("steps", po::value(&how.steps)->default_value(how.steps), "measured steps of each run")
      ("repeats", po::value(&how.repeats)->default_value(how.repeats), "runs of each point")
      ("output", po::value(&output)->default_value(output), "the folder of runs and results")
      ("json", po::bool_switch(), "print the result as JSON");
  // clang-format on
  add_launcher_option(options, how.launcher);
  add_plan_options(options);
  ErrorList errors("scale");
  CommandLine rest{line.world, take_settings("scale", line.args, how.settings, errors, options), line.options};
  po::variables_map given;
  if (!parse_options(rest, "scale", options, {"config"}, given, errors)) return 0;
  errors.run([] { starts_ranks_itself("scale"); });
  bool layouts_known = has_value(given, "ranks") && errors.run([&] { how.ranks = parse_ranks(ranks); });
  std::sort(how.ranks.begin(), how.ranks.end());
  how.ranks.erase(std::unique(how.ranks.begin(), how.ranks.end()), how.ranks.end());
  if (how.steps < 1 || how.warm_up < 0 || how.repeats < 1)
    errors.add("--steps and --repeats are at least 1, and --warm-up at least 0");
  if (layouts != "auto") layouts_known &= errors.run([&] { how.layouts = parse_layouts(layouts, 1); });
  how.balanced = !own_only;
  how.output = output;
  if (given.count("load") && !given.count("machine"))
    errors.add("scale: --load goes with --machine: it is for what `plan` predicts");
  PlanOptions plan;
  std::vector<ConfigCheck> checks{{check_data_path}};
  read_plan_options(given, plan, checks, errors);
  how.machine = plan.machine;
  if (layouts_known) checks.push_back({[&](const Config& c) { scale_layouts(c, how); }, true});
  if (has_value(given, "config")) {
    how.config = given["config"].as<std::string>();
    errors.run([&] { read_config(how.config, how.settings, checks); });
  }
  errors.raise();
  how.load = std::move(plan.load);
  listen_for_stop();
  ScaleResult result = plan_scale(how);
  if (!measure_scale(result, how)) return told_to_stop();
  const std::filesystem::path out = how.output / result.name;
  write_file(out.string() + ".csv", scale_csv(result));
  write_file(out.string() + ".json", json_text(scale_json(result)));
  try {
    write_file(out.string() + ".html", scale_html(result));
  } catch (const Failure& e) {
    warn(fmt::format("no page: {}", e.what()));
  }
  if (given["json"].as<bool>())
    fmt::print("{}", json_text(scale_json(result)));
  else
    fmt::print("{}", scale_text(result));
  return std::any_of(result.points.begin(), result.points.end(), [](const ScalePoint& p) { return !p.failure.empty(); })
             ? 1
             : 0;
}

}  // namespace sy
