// Time of a step by category, from the traces of a run's ranks (src/io/trace.h).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/plan/cost.h"

namespace sy {

// Returns the seconds of a step of one rank, averaged over the steps of its trace. Empty if the
// trace has no step. trace: the text of the file.
// A collective counts for its category (dispatch, combine, tensor parallelism, gradients,
// statistics), including the time that it waits for other ranks. All other time is compute. Throws
// JsonError if the text is not a trace.
std::optional<StepTime> rank_breakdown(const std::string& trace);

// Returns the mean over all ranks; empty without ranks.
// The rank with the least time in the collectives of a category defines the time of that category.
// All time beyond it is waiting, because no rank can send faster than that one did.
std::optional<StepTime> mean_breakdown(const std::vector<StepTime>& ranks);

// Reads RUN/trace/rank-*.json. Empty if the run was not traced. Throws InputError that names a file
// that is not a trace.
std::optional<StepTime> traced_breakdown(const std::filesystem::path& run);

}  // namespace sy
