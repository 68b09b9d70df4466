// Helpers of the commands that start trainings themselves.
#pragma once

#include "src/cli/options.h"
#include "src/train/stop.h"

namespace sy {

// Adds the option --launcher, which launch_command() parses.
inline void add_launcher_option(po::options_description& options, std::string& launcher) {
  options.add_options()("launcher", po::value(&launcher),
                        "how ranks are started, {ranks} being their number, as in \"srun --mpi=pmix -n {ranks}\" "
                        "(otherwise launch/mpirun.sh)");
}

// Throws InputError under mpirun or srun.
inline void starts_ranks_itself(const char* command) {
  if (launcher_pid() != 0) bad_input("{} starts the ranks itself: call it without mpirun or srun", command);
}

// Prints that the command was asked to stop, and returns the exit code for it.
inline int report_stop() {
  fmt::print(stderr, "stopped as {} asked; the same command goes on\n", signal_name(stop_signal()));
  return stopped_exit_code;
}

}  // namespace sy
