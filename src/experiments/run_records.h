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

}  // namespace sy
