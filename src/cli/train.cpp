#include "src/cli/options.h"
#include "src/config.h"
#include "src/train/trainer.h"

namespace sy {
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
    CommandLine rest{line.world, take_settings("train", line.args, settings), line.options};
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
