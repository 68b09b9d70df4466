// The check of an installed copy (`switchyard selftest`): every operation against a reference,
// short trainings that must agree, and a checkpoint.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/comm.h"

namespace sy::selftest {

// Result of one check on one rank.
struct Finding {
  std::string detail;               // "55 operations, 912 cases"
  std::vector<std::string> errors;  // one line each; empty if the check passed
  std::string skipped;              // the reason; empty if the check ran
};

// An error with the ranks that reported it, ascending.
struct Failure {
  std::vector<int> ranks;
  std::string error;
};

// Result of one check on all ranks.
struct Check {
  std::string name;
  double seconds = 0;  // of the slowest rank
  std::string detail, skipped;
  std::vector<Failure> failures;  // empty if the check passed or was skipped
};

struct Options {
  // Folder for the generated data and the checkpoint; empty means the temporary folder of the
  // machine, or the working directory if the ranks are on several machines.
  std::filesystem::path folder;
  // Called on every rank when a check starts, and within it with its completed share.
  std::function<void(std::string_view check, Index done, Index total)> progress = [](std::string_view, Index, Index) {};
};

// Runs all checks on all ranks. Returns the same results on every rank. Collective.
// A folder of the self-test is removed at the end, also if checks fail.
std::vector<Check> run(Comm& world, const Options& options);

}  // namespace sy::selftest
