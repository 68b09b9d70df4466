// The runs below a folder, and how far each of them is.
#pragma once

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "src/text/json.h"

namespace sy {

enum class RunState {
  running,        // a process holds its lock
  done,           // the checkpoint of train.steps is there
  stopped_early,  // by train.patience
  stopped,        // asked to stop: the checkpoint of its last step is there
  interrupted,    // ended without such a checkpoint, or without removing its lock file
  not_started,    // no step yet
  damaged         // a file cannot be read, or is not what training writes
};
std::string name_of(RunState state);  // "stopped early"

struct RunInfo {
  std::filesystem::path folder;
  RunState state = RunState::not_started;
  std::string problem, holder;              // empty if nothing is damaged; if no process holds the lock
  std::int64_t step = 0, steps = 0;         // the last step; train.steps, 0 if it is not known
  std::int64_t checkpoint = -1;             // step of the newest one; -1: there is none
  std::int64_t validation_step = -1;        // of the latest validation; -1: none was found
  double loss = std::nan("");               // of the last step; NaN if it is not known
  double validation = std::nan("");         // loss of the latest validation; likewise
  double tokens_per_second = std::nan("");  // median of the last steps; likewise
};

// Returns the facts about one run. Never throws for what its files hold. Reads the end of
// metrics.jsonl, config.ini, the lock file, and the manifest of the newest checkpoint.
RunInfo inspect_run(const std::filesystem::path& folder);

struct RunList {
  std::vector<RunInfo> runs;          // by path
  std::vector<std::string> warnings;  // folders that were not searched
};
// Searches a folder and all folders below it. Links are not followed, and hidden folders, data sets
// and the insides of runs are not searched. Throws InputError if `folder` is no folder.
RunList find_runs(const std::filesystem::path& folder);

std::string runs_text(const RunList& list, const std::filesystem::path& folder);
Json runs_json(const RunList& list, const std::filesystem::path& folder);

}  // namespace sy
