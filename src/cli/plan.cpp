// switchyard plan: memory, FLOPs, traffic and time of every layout, without running any.
#include <iostream>

#include "src/cli/plan_options.h"
#include "src/cli/progress.h"
#include "src/cli/trained.h"
#include "src/experiments/document.h"

namespace sy {

void add_plan_options(po::options_description& options, const std::string& before) {
  const std::string machine =
      before + "a machine file, or the name of one in configs/machines: predicts times, and says what fits";
  const std::string load = before + "the load of the experts that this run, or checkpoint, recorded";
  options.add_options()("machine", po::value<std::string>(), machine.c_str())("load", po::value<std::string>(),
                                                                              load.c_str());
}

MachineFile read_plan_options(const po::variables_map& arguments, PlanOptions& options,
                              std::vector<ConfigCheck>& checks, ErrorList& errors) {
  MachineFile machine;
  const std::string config = has_value(arguments, "config") ? arguments["config"].as<std::string>() : "";
  if (has_value(arguments, "machine"))
    errors.run([&] {
      machine = read_machine_file(arguments["machine"].as<std::string>(), config);
      options.machine = parse_machine(machine.text, machine.path);
    });
  if (!has_value(arguments, "load")) return machine;
  const std::string run = arguments["load"].as<std::string>();
  checks.push_back({[&options, run](const Config& c) { options.load = recorded_load(run, c); }, true});
  return machine;
}

int plan_command(CommandLine& line) {
  po::options_description options(
      "Lists the layouts that fit a model on so many ranks, the fastest first: memory of a rank, FLOPs, bytes by collective, and,\n"
      "with a machine, the time of a step. If none fits, names settings that do.\n"
      "Runs what trains on a backend that only counts, so no hardware is needed.\n"
      "Any --section.key=value changes the configuration.\n\nOptions");
  int top = 10;
  options.add_options()("ranks", po::value<std::string>()->required(), "numbers of ranks, with commas between them");
  add_plan_options(options);
  options.add_options()("layouts", po::value<std::string>(), "these alone, such as tp2-ep4,ep16-node8")(
      "top", po::value(&top), "how many layouts to show (10; 0: all)")(
      "operations", po::bool_switch(), "also show the operations of the first layout")("json", po::bool_switch(),
                                                                                       "print JSON");
  std::vector<std::string> settings;
  ErrorList errors("plan");
  po::variables_map arguments;
  if (!parse_options(line, "plan", options, {"config"}, arguments, errors, &settings)) return 0;
  if (top < 0) errors.add("plan: --top {}: give a number of layouts, or 0 for all", top);
  std::vector<int> ranks;
  if (has_value(arguments, "ranks")) errors.run([&] { ranks = parse_ranks(arguments["ranks"].as<std::string>()); });
  Config config;
  std::vector<std::string> warnings;
  Index vocab = 0;
  PlanOptions plan_options;
  if (has_value(arguments, "config")) {
    const std::string file = arguments["config"].as<std::string>();
    const bool read = !arguments.count("layouts") || errors.run([&] {
      plan_options.layouts = parse_layouts(arguments["layouts"].as<std::string>(), 1);
    });
    std::vector<ConfigCheck> checks{{[&](const Config& c) { vocab = vocab_of(c, file); }, true}};
    read_plan_options(arguments, plan_options, checks, errors);
    if (plan_options.machine)
      checks.push_back({[&](const Config& c) { check_machine_computes(*plan_options.machine, c); }});
    const auto check_layouts = [&](const Config& c) {
      ErrorList wrong("plan");
      for (const int n : ranks) wrong.run([&] { layouts_to_plan(c, vocab, n, plan_options); });
      wrong.raise();
    };
    if (read) checks.push_back({check_layouts, true});
    errors.run([&] { config = read_config(file, settings, checks, nullptr, &warnings); });
  }
  errors.raise();
  for (const std::string& text : warnings) warn(text);
  plan_options.suggest = true;
  Progress progress(true);
  plan_options.progress = [&](std::string_view phase, Index done, Index total) {
    progress.show(phase, done, total, "layouts");
  };

  Json document = json_document("plan", with_inputs(line.provenance, to_ini(config), ""));
  document["configuration"] = config_json(config);
  document["machine"] = plan_options.machine ? machine_json(*plan_options.machine) : Json();
  Json& all = document["plans"] = Json::array();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Plan plan = make_plan(config, vocab, ranks[i], plan_options);
    progress.clear();
    if (arguments["json"].as<bool>())
      all.push_back(plan_json(plan));
    else
      std::cout << (i > 0 ? "\n" : "")
                << plan_text(plan, static_cast<std::size_t>(top), arguments["operations"].as<bool>()) << std::flush;
  }
  if (arguments["json"].as<bool>()) std::cout << json_text(document) << std::flush;
  return 0;
}

}  // namespace sy
