#include <fmt/core.h>

#include "src/cli/options.h"
#include "src/train/trainer.h"

namespace sy {

int train_command(CommandLine& line) {
  std::vector<std::string> overrides;
  std::string file;
  bool help = line.args.empty();
  Config config;
  agree(line.world, [&] {
    for (const std::string& arg : line.args) {
      if (arg == "--help" || arg == "-h")
        help = true;
      else if (arg.rfind("--", 0) == 0)
        overrides.push_back(arg);
      else if (file.empty())
        file = arg;
      else
        bad_input("train: '{}' and '{}': give one configuration file; settings have the form --section.key=value", file,
                  arg);
    }
    if (help) return;
    if (file.empty())
      bad_input("train: no configuration file: usage: switchyard train CONFIG [--section.key=value ...]");
    config = read_config(file, overrides);
  });
  if (help) {
    if (line.world.rank() == 0)
      fmt::print(
          "usage: switchyard train CONFIG [--section.key=value ...]\n\n"
          "Alone, or under mpirun or srun with one process per rank. `switchyard help config` lists the keys;\n"
          "configs/ holds examples. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 ask for a checkpoint and a clean stop, which "
          "has\n"
          "exit code 3; a second Ctrl-C, SIGTERM or SIGHUP ends the run at once.\n");
    return line.args.empty() ? 2 : 0;
  }
  return run_training(line.world, config);
}

}  // namespace sy
