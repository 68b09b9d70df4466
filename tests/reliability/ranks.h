// Jobs of two ranks under launch/mpirun.sh. A rank is this program, as `switchyard`.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/reliability/campaign.h"

namespace sy::campaign {

// Command of a job whose ranks have these arguments.
std::vector<std::string> job_command(const std::vector<std::string>& args);
// Command of a job whose ranks differ. environment: variables of the rank, as "NAME=VALUE".
struct RankCommand {
  std::vector<std::string> args;
  std::vector<std::string> environment = {};
};
std::vector<std::string> job_command(const RankCommand& first, const RankCommand& second);

// Processes that train below the working folder, the older first.
std::vector<pid_t> rank_processes();
// Waits until they have ended. Kills those that are left after ten seconds, and returns false.
bool wait_for_ranks();
// Runs a job that trains below the working folder. It counts as hung if the launcher does not end
// within the limit, or a rank outlives the launcher by ten seconds. All ranks have ended on return.
CommandResult run_job(const std::vector<std::string>& command, const CommandOptions& options);

// Outcome of a job one of whose ranks was lost: reported if the job failed, and a message names the
// cause or the rank.
Outcome outcome_of_lost_rank(const CommandResult& result);

}  // namespace sy::campaign
