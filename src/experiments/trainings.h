// The trainings of an experiment. Each has its own run folder, and they run one after the other.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/config.h"
#include "src/provenance/provenance.h"

namespace sy {

struct Training {
  std::filesystem::path run;
  std::filesystem::path config;       // configuration that the settings change
  std::vector<std::string> settings;  // "--key=value"
  int ranks = 1;
  Index steps = 0;    // total number of steps at the end
  std::string label;  // for progress
  // If true, the run is timed. The launcher starts even a single rank, so that all runs have the
  // same settings. An interrupted run starts anew, as the first steps after a restart are slower.
  bool measured = false;
};

// Returns the settings that change the results or the speed of a new training, and differ between
// two configurations: "KEY: A here, B there".
std::vector<std::string> different_settings(const Config& here, const Config& there);
// Returns the same for `config` and the run in this folder; empty if there is no run.
std::vector<std::string> other_settings(const std::filesystem::path& run, const Config& config);
// Throws InputError if the folder holds a run with other settings than `config`. Otherwise that run
// would be mistaken for this one.
void check_folder(const std::filesystem::path& run, const Config& config);

// Returns whether a training has ended. If it was killed, or if its last save failed, it may have
// metrics of all steps without its last checkpoint. If a user has deleted all checkpoints, it has
// nevertheless ended: RUN.log has no error.
bool has_ended(const Training& training);

// Adds the warnings in RUN.log to `warnings`, without duplicates.
void add_warnings(const std::filesystem::path& run, std::vector<std::string>& warnings);

// Trains the incomplete runs, and shows progress on standard error. A folder that appears twice is
// one run. launcher: the words that start ranks, with "{ranks}" for
// their number, such as "mpirun -np {ranks}"; launch/mpirun.sh if it is empty.
// Returns the errors of failed runs by folder. The other runs are trained nevertheless. Returns
// nullopt if this process was asked to stop; a later call continues there.
std::optional<std::map<std::filesystem::path, std::string>> train_all(const std::vector<Training>& trainings,
                                                                      const std::string& launcher);

// Returns the record of a call with the machines on which its runs trained: hosts, processors, GPUs
// and data digests of the last start of each run, without duplicates. They replace those of this
// process. Runs without a record do not count.
Json with_runs(Json record, const std::vector<Training>& runs);

// Machines on which a run trained, by the record of its last start.
struct RunHardware {
  int hosts = 0;      // number of hosts; 0 without a record
  bool gpus = false;  // whether its ranks saw GPUs
};
RunHardware hardware_of(const std::filesystem::path& run);

}  // namespace sy
