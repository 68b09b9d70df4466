// Programs that an experiment starts one after the other.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace sy {

// Returns the command that starts a program on a number of ranks. "{ranks}" in `launcher`
// stands for that number. If `launcher` is empty, launch/mpirun.sh of this clone or installation is
// used.
// A single rank then needs no launcher, unless `always` is true. Throws InputError if the script is
// missing.
std::vector<std::string> launch_command(const std::string& launcher, int ranks, bool always = false);

struct ProgramResult {
  int code = 0;  // exit code, or 128 + the signal that ended it
  // Last error that it printed, without "switchyard: "; empty if there is none.
  std::string error;
};
// Runs a program to its end. Its output goes to the file `log`. Calls `meanwhile` about ten times a
// second.
// A stop request to this process (src/train/stop.h) is passed on. If this process dies, the program
// gets SIGTERM. Throws Failure if it cannot be started.
ProgramResult run_program(const std::vector<std::string>& command, const std::filesystem::path& log,
                          const std::function<void()>& meanwhile);

}  // namespace sy
