// switchyard sweep: trains a grid of configurations and compares the results.
#include "src/experiments/sweep.h"

#include <algorithm>

#include "dist/runtime.h"
#include "src/cli/options.h"
#include "src/system/files.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/train/stop.h"

namespace sy {
namespace fs = std::filesystem;

namespace {

// Returns the record of the call with the runs of the sweeps. It has the digest of the
// configuration if there is one sweep.
Json record_of(const Json& provenance, const std::vector<SweepResult>& results) {
  std::vector<Training> runs;
  for (const SweepResult& result : results)
    for (const Trial& trial : result.trials) runs.insert(runs.end(), trial.runs.begin(), trial.runs.end());
  return with_runs(with_inputs(provenance, results.size() == 1 ? to_ini(results.front().base) : "", ""), runs);
}

std::string provenance_markdown(const Json& record, ProvenanceDetail detail) {
  std::string text = "\n" + provenance_line(record) + "\n";
  if (detail == ProvenanceDetail::full) text += "\n```json\n" + json_text(record) + "```\n";
  return text;
}

}  // namespace

int sweep_command(CommandLine& line) {
  po::options_description options(
      "Trains every combination of what varies, one run after the other, and compares the losses: a table, and the curves\n"
      "as a picture. CONFIG is a configuration, or a file with a section [sweep] (configs/ablations/ holds some). What has\n"
      "been trained is not trained again, and what was interrupted goes on. --section.key=value holds for every run.\n\n"
      "Options");
  std::vector<std::string> vary;
  std::string output = "runs/sweep", seeds;
  SweepOptions sweep_options;
  // clang-format off
  options.add_options()
      ("vary", po::value(&vary),
       "KEY=VALUE,VALUE,...: train each; given again, every combination. KEY:KEY=A:B,C:D: keys "
       "that vary together")
      ("seeds", po::value(&seeds), "1,2,3: train each with these seeds, and report mean and standard deviation")
      ("ranks", po::value(&sweep_options.ranks)->default_value(1), "the ranks of each run")
      ("output", po::value(&output)->default_value(output), "the folder of runs, tables and pictures")
      ("json", po::bool_switch(), "print everything as JSON");
  // clang-format on
  add_launcher_option(options, sweep_options.launcher);
  add_provenance_option(options);
  ErrorList errors("sweep");
  po::variables_map arguments;
  if (!parse_options(line, "sweep", options, {"config"}, arguments, errors, &sweep_options.settings, true)) return 0;
  errors.run([] { starts_ranks_itself("sweep"); });
  if (!has_value(arguments, "ranks"))
    sweep_options.ranks = 0;
  else if (sweep_options.ranks < 1)
    errors.add("--ranks {}: give a number from 1 on", sweep_options.ranks);
  for (const std::string& seed : split_list(seeds))
    if (const auto number = parse_number<std::int64_t>(seed); !number)
      errors.add("--seeds {}: '{}' is no number", seeds, seed);
    else if (std::ranges::find(sweep_options.seeds, *number) != sweep_options.seeds.end())
      errors.add("--seeds {}: {} is there twice: keep one", seeds, *number);
    else
      sweep_options.seeds.push_back(*number);
  errors.run([&] { check_launcher(sweep_options.launcher, {std::max(sweep_options.ranks, 1)}); });
  sweep_options.output = output;
  install_stop_handlers();
  std::vector<Variation> variations;
  for (const std::string& v : vary) errors.run([&] { variations.push_back(parse_variation(v)); });
  std::vector<SweepResult> results;
  std::vector<std::string> files;
  if (has_value(arguments, "config")) files = arguments["config"].as<std::vector<std::string>>();
  for (const std::string& file : files)
    errors.run([&] {
      Sweep sweep = read_sweep(file);
      sweep.variations.insert(sweep.variations.end(), variations.begin(), variations.end());
      if (sweep.variations.empty() && vary.empty())
        bad_input("nothing varies in {}: give --vary KEY=VALUE,VALUE,..., or a file with a section [sweep]", file);
      results.push_back(plan_sweep(sweep, sweep_options));
    });
  const ProvenanceDetail detail = provenance_detail(arguments, errors);
  errors.raise();
  if (!train_sweeps(results, sweep_options)) return report_stop();
  std::size_t failed = 0, stopped = 0;
  for (const SweepResult& result : results) {
    const Json provenance = record_of(line.provenance, {result});
    write_file(sweep_options.output / (result.name + ".md"),
               sweep_markdown(result) + provenance_markdown(provenance, detail));
    write_file(sweep_options.output / (result.name + ".json"), json_text(sweep_json({result}, provenance)));
    try {
      if (const std::string picture = sweep_picture(result, record_for(provenance, detail)); !picture.empty())
        write_file(sweep_options.output / (result.name + ".svg"), picture);
      else
        warn(fmt::format(
            "no picture of {}: no run has two losses to draw a line through: lower train.validate_every, or "
            "raise train.steps",
            result.name));
    } catch (const Failure& e) {
      warn(fmt::format("no picture of {}: {}", result.name, e.what()));
    }
    for (const Trial& trial : result.trials) failed += trial.failed, stopped += trial.stopped;
    if (!arguments["json"].as<bool>()) fmt::print("{}{}", &result == &results.front() ? "" : "\n", sweep_text(result));
  }
  if (arguments["json"].as<bool>())
    fmt::print("{}", json_text(sweep_json(results, record_of(line.provenance, results))));
  return failed > 0 ? 1 : stopped > 0 ? stopped_exit_code : 0;
}

}  // namespace sy
