// What the time of a step went to, by the traces of a run's ranks (src/io/trace.h).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/plan/cost.h"

namespace sy {

// One rank's trace, the text of such a file: seconds of a step, on average over those that it holds. A collective belongs to what it
// is called for (dispatch, combine, tensor parallelism, gradients, statistics), with the time that it waits for other ranks; all
// else is computed. Throws JsonError where it is no trace; nothing where it holds no step.
std::optional<StepTime> rank_parts(const std::string& trace);

// Of all ranks: the mean, where what a rank spends in collectives of one part beyond the rank that spends least there is waiting: no
// rank can send faster than that one did. Nothing where there is no rank.
std::optional<StepTime> mean_parts(const std::vector<StepTime>& ranks);

// RUN/trace/rank-*.json. Nothing where the run was not traced. Throws InputError that names a file that is no trace.
std::optional<StepTime> traced_parts(const std::filesystem::path& run);

}  // namespace sy
