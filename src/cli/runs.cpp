// switchyard runs: lists the runs below a folder.
#include <iostream>

#include "src/cli/options.h"
#include "src/experiments/runs.h"
#include "src/text/json.h"

namespace sy {

int runs_command(CommandLine& line) {
  po::options_description options(
      "Runs below FOLDER (otherwise the working directory), and how far each is.\n"
      "States: running (a process holds its lock), done, stopped early (train.patience, train.target_loss), stopped (asked to, with a "
      "checkpoint), interrupted, not started, damaged. Links are not followed");
  options.add_options()("folder", po::value<std::string>()->default_value("."), "the folder that is searched")(
      "json", po::bool_switch(),
      "print JSON: folder, and runs with run, state, step, steps, loss, validation_loss, validation_step, "
      "tokens_per_second (median of the last 20 steps), checkpoint, holder (of the lock) and problem; null: not known");
  po::variables_map arguments;
  if (!parse_options(line, "runs", options, {"folder"}, arguments)) return 0;
  const std::string folder = arguments["folder"].as<std::string>();
  const RunList list = find_runs(folder);
  for (const std::string& warning : list.warnings) warn(warning);
  if (arguments["json"].as<bool>())
    std::cout << json_text(runs_json(list, folder)) << std::flush;
  else
    std::cout << runs_text(list, folder) << std::flush;
  return 0;
}

}  // namespace sy
