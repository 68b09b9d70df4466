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

// Digests of data sets. Each data set is opened once.
class DataDigests {
 public:
  // Returns Dataset::digest() of the data set in a folder.
  const std::string& of(const std::filesystem::path& folder);

 private:
  std::map<std::filesystem::path, std::string> digests_;
};

// Returns the differences between a training, whose configuration is `config`, and the run in its
// folder; empty if there is no run. They are different_settings(), the layout, the number of ranks
// and the digest of the data.
std::vector<std::string> other_settings(const Training& training, const Config& config, DataDigests& digests);
// Throws InputError if there is a difference, so that no run is mistaken for another.
void check_folder(const Training& training, const Config& config, DataDigests& digests);

// Returns whether a training has ended. If it was killed, or if its last save failed, it may have
// metrics of all steps without its last checkpoint. A run without any checkpoint, which a user may
// have deleted, has ended if its last start has no error in RUN.log.
bool has_ended(const Training& training);

// Adds the warnings in RUN.log, of all starts, to `warnings`, without duplicates.
void add_warnings(const std::filesystem::path& run, std::vector<std::string>& warnings);

// Throws InputError if `launcher` starts the same number of ranks each time, because it has no
// "{ranks}", and a number of `ranks` is not 1. launcher: see train_all().
void check_launcher(const std::string& launcher, const std::vector<int>& ranks);

// Why train_all() did not complete a run.
struct IncompleteRun {
  std::string reason;
  // If true, the run stopped with a checkpoint, as after run.max_hours. A later call continues it,
  // unless it is `measured`.
  bool stopped = false;
};
// Trains the incomplete runs, and shows progress on standard error. A folder that appears twice is
// one run. launcher: the words that start ranks, with "{ranks}" for
// their number, such as "mpirun -np {ranks}"; launch/mpirun.sh if it is empty.
// Returns the incomplete runs by folder. The other runs are trained nevertheless. A run on another
// number of ranks is incomplete. Returns nullopt if this process was asked to stop; a later call
// continues there.
std::optional<std::map<std::filesystem::path, IncompleteRun>> train_all(const std::vector<Training>& trainings,
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
