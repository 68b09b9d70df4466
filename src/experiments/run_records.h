// Records of the runs that a command started.
#pragma once

#include <vector>

#include "src/experiments/trainings.h"
#include "src/provenance/provenance.h"

namespace sy {

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
