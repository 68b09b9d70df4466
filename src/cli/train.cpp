#include "src/cli/options.h"
#include "src/config.h"
#include "src/train/trainer.h"

namespace sy {
namespace {

// Takes the settings, --section.key=value or --section.key value, out of the arguments and returns what is left.
std::vector<std::string> take_settings(const std::vector<std::string>& args, std::vector<std::string>& settings) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    const std::string name = arg.substr(0, arg.find('='));
    if (!name.starts_with("--") || name.find('.') == name.npos) {
      for (const ConfigKey& key : config_keys())
        if (name.starts_with("--") && key.name.ends_with("." + name.substr(2)))
          bad_input("train: unknown option {}: did you mean --{}?", name, key.name);
      rest.push_back(arg);
    } else if (name.size() < arg.size()) {
      settings.push_back(arg);
    } else if (i + 1 < args.size() && !args[i + 1].starts_with("--")) {
      settings.push_back(arg + "=" + args[++i]);
    } else {
      bad_input("train: {} has no value: settings have the form --section.key=value", arg);
    }
  }
  return rest;
}

}  // namespace

int train_command(CommandLine& line) {
  po::options_description options(
      "Trains alone, or under mpirun or srun with one process per rank. `switchyard help config` lists the keys;\n"
      "configs/ holds examples. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 ask for a checkpoint and a clean stop, which has\n"
      "exit code 3; a second Ctrl-C, SIGTERM or SIGHUP ends the run at once.\n\nOptions");
  RunOptions how;
  options.add_options()                                                                                          //
      ("quiet", po::bool_switch(&how.quiet), "no progress: only the last step, warnings and errors")             //
      ("dry-run", po::bool_switch(&how.dry_run), "check configuration, layout, data and memory; write nothing")  //
      ("ranks", po::value(&how.ranks), "with --dry-run: as on this many ranks");
  Config config;
  bool go = true;
  agree(line.world, [&] {
    std::vector<std::string> settings;
    CommandLine rest{line.world, take_settings(line.args, settings), line.options};
    po::variables_map given;
    go = parse_options(rest, "train", options, {"config"}, given);
    if (!go) return;
    if (given.count("ranks") && !how.dry_run) bad_input("train: --ranks goes with --dry-run: start that many ranks");
    if (given.count("ranks") && (how.ranks < 1 || how.ranks > 1 << 20))
      bad_input("train: --ranks {}: give a number from 1 to {}", how.ranks, 1 << 20);
    config = read_config(given["config"].as<std::string>(), settings);
  });
  return go ? run_training(line.world, config, how) : 0;
}

}  // namespace sy
