// The runs below a folder, and the progress of each.
#pragma once

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "src/text/json.h"

namespace sy {

enum class RunState {
  running,        // a process holds the lock of the run
  done,           // the checkpoint of train.steps exists
  stopped_early,  // stopped by train.patience
  // Stopped on request: the checkpoint of its last step exists.
  stopped,
  interrupted,  // ended without such a checkpoint, or left its lock file
  not_started,  // has no step yet
  damaged       // a file cannot be read, or is not written by training
};
std::string name_of(RunState state);  // "stopped early"

struct RunInfo {
  std::filesystem::path folder;
  RunState state = RunState::not_started;
  // problem: empty if nothing is damaged. holder: empty if no process holds the lock.
  std::string problem, holder;
  std::int64_t step = 0, steps = 0;         // last step; train.steps, or 0 if unknown
  std::int64_t checkpoint = -1;             // step of the newest one; -1 if there is none
  std::int64_t validation_step = -1;        // step of the latest validation; -1 if there is none
  double loss = std::nan("");               // loss of the last step; NaN if unknown
  double validation = std::nan("");         // loss of the latest validation; NaN if unknown
  double tokens_per_second = std::nan("");  // median of the last steps; NaN if unknown
};

// Returns the state of one run. The content of its files never makes it throw.
// It reads the end of metrics.jsonl, config.ini, the lock file, and the manifest of the newest
// checkpoint.
RunInfo inspect_run(const std::filesystem::path& folder);

struct RunList {
  std::vector<RunInfo> runs;          // by path
  std::vector<std::string> warnings;  // folders that were not searched
};
// Searches a folder and all folders below it. Does not follow links, nor search hidden folders,
// data sets and the insides of runs. Throws InputError if `folder` is not a folder.
RunList find_runs(const std::filesystem::path& folder);

std::string runs_text(const RunList& list, const std::filesystem::path& folder);
Json runs_json(const RunList& list, const std::filesystem::path& folder);

}  // namespace sy
