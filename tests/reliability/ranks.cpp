#include "tests/reliability/ranks.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "src/system/files.h"

namespace sy::campaign {

std::vector<std::string> job_command(const std::vector<std::string>& args) {
  std::vector<std::string> command = {SOURCE_FOLDER "/launch/mpirun.sh", "2", program_path().string()};
  command.insert(command.end(), args.begin(), args.end());
  return command;
}

std::vector<std::string> job_command(const RankCommand& first, const RankCommand& second) {
  std::vector<std::string> command = {SOURCE_FOLDER "/launch/mpirun.sh", "1"};
  for (const bool is_second : {false, true}) {
    const RankCommand& rank = is_second ? second : first;
    if (is_second) command.insert(command.end(), {":", "-np", "1"});
    command.emplace_back("env");
    command.insert(command.end(), rank.environment.begin(), rank.environment.end());
    command.push_back(program_path().string());
    command.insert(command.end(), rank.args.begin(), rank.args.end());
  }
  return command;
}

// The ranks have the program as their executable, and the folder of their run in their arguments.
std::vector<pid_t> rank_processes() {
  std::vector<pid_t> ranks;
  const std::string run = "--run.dir=" + (work_folder() / "").string();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const pid_t process = std::atoi(entry.path().filename().c_str());
    if (process <= 0 || process == ::getpid()) continue;
    if (fs::read_symlink(entry.path() / "exe", error) != program_path() || error) continue;
    // A process may vanish between any two of these calls. std::getline then fails, without an
    // exception.
    std::ifstream in(entry.path() / "cmdline");
    bool is_rank = false;
    for (std::string argument; std::getline(in, argument, '\0');) is_rank |= argument.starts_with(run);
    if (is_rank) ranks.push_back(process);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

bool wait_for_ranks() {
  bool ended = true;
  constexpr int checks = 100;
  for (int i = 0; i < checks && !rank_processes().empty(); ++i) sleep_seconds(0.1);
  for (const pid_t rank : rank_processes()) {
    ended = false;
    ::kill(rank, SIGKILL);
  }
  while (!rank_processes().empty()) sleep_seconds(0.01);
  return ended;
}

CommandResult run_job(const std::vector<std::string>& command, const CommandOptions& options) {
  CommandResult result = run_process(command, options);
  if (!wait_for_ranks()) result.hung = true;
  return result;
}

Outcome outcome_of_lost_rank(const CommandResult& result) {
  if (result.hung) return Outcome::hung;
  if (result.signal != 0) return Outcome::crashed;
  if (result.code == 0) return Outcome::survived;
  if (errors_in(result.err) > 0) return Outcome::reported;
  // The messages of launch/mpirun.sh, and of the launchers of Open MPI and MPICH.
  const std::string all = result.err + result.out;
  for (const char* const message : {"launch/mpirun.sh: 1 of 2 ranks", "exited on signal", "Process name: ",
                                    "mpirun has exited due to process rank", "EXIT STRING", "EXIT CODE"})
    if (all.find(message) != std::string::npos) return Outcome::reported;
  return Outcome::unclear;
}

}  // namespace sy::campaign
