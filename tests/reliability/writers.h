// The commands of the campaign that write files.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/reliability/campaign.h"

namespace sy::campaign {

struct Writer {
  std::string name;
  std::vector<std::string> args;   // of the command that has a fault
  std::vector<std::string> again;  // of the command after it
  std::string path;                // substring of the paths whose calls are counted
  std::function<void()> reset;     // restores the folders before the command
  std::function<std::string()> result;
  std::string undisturbed = "";  // result without a fault
  Index calls = 0;               // counted calls of the undisturbed command
  bool starts_trainings = false;
  bool is_training = false;
  int rank = -1;  // of a training that the command starts, which has the fault; -1: the command
};

// Makes the inputs, runs each command without a fault, and returns all commands.
// removals: counts removals of files, too.
std::vector<Writer> make_writers(bool removals);
// The same for `sweep` and `scale`, which start trainings: the fault is in the command or in one of
// these trainings.
std::vector<Writer> make_starters();
// Commands whose files are below the folder `root`, without counts.
std::vector<Writer> make_trainings_below(const fs::path& root);
std::vector<Writer> make_commands_below(const fs::path& root);

// A fault of a command. Trials 0 to points - 1 of all writers have all faults.
struct Point {
  const Writer* writer;
  Index call;  // from 1
  Index kind;  // below the number of kinds
};
Index count_points(const std::vector<Writer>& writers, Index kinds);
Point point_of(const std::vector<Writer>& writers, Index kinds, Index trial);

// Runs the command with a kill in it, or in a training that it starts. All trainings have ended on
// return.
CommandResult run_killed(const Writer& writer, const Fault& fault);
// Runs the command again without a fault. Returns its failure; survived if its result is that of an
// undisturbed one.
Outcome outcome_again(const Writer& writer, std::string& details);
// Outcome of a command that had a fault and was not killed, and of the same command, sent again.
TrialResult outcome_of_failure(const Writer& writer, const CommandResult& first, const std::string& fault);

}  // namespace sy::campaign
