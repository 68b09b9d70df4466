// Programs that an experiment starts, one after the other.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace sy {

// The words that start a program on so many ranks. "{ranks}" in `launcher` stands for their number. An
// empty launcher is launch/mpirun.sh of this clone or installation. It starts a single rank only if
// `always` is true. Throws InputError if the script is missing.
std::vector<std::string> launch_words(const std::string& launcher, int ranks, bool always = false);

struct Ended {
  int code = 0;       // its exit code; 128 + the signal that ended it
  std::string error;  // the last error that it printed, without "switchyard: "; empty: none
};
// Runs a program, whose output goes to the file `log`, to its end, and calls `meanwhile` a few times a second. It is asked to
// stop where this process is (src/train/stop.h), and ends with it. Throws Failure where it cannot be started.
Ended run_program(const std::vector<std::string>& words, const std::filesystem::path& log,
                  const std::function<void()>& meanwhile);

}  // namespace sy
