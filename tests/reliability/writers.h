// The commands of the campaign that write files.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/reliability/campaign.h"

namespace sy::campaign {

struct Writer {
  const char* name;
  std::vector<std::string> args;   // of the command that has a fault
  std::vector<std::string> again;  // of the command after it
  std::string path;                // substring of the paths whose calls are counted
  std::function<void()> reset;     // restores the folders before the command
  std::function<std::string()> result;
  std::string undisturbed = "";  // result without a fault
  Index calls = 0;               // counted calls of the undisturbed command
};

// Makes the inputs, runs each command without a fault, and returns all commands.
// removals: counts removals of files, too.
std::vector<Writer> make_writers(bool removals);

// A fault of a command. Trials 0 to points - 1 of all writers have all faults.
struct Point {
  const Writer* writer;
  Index call;  // from 1
  Index kind;  // below the number of kinds
};
Index count_points(const std::vector<Writer>& writers, Index kinds);
Point point_of(const std::vector<Writer>& writers, Index kinds, Index trial);

// Runs the command again without a fault. Returns its failure; survived if its result is that of an
// undisturbed one.
Outcome outcome_again(const Writer& writer, std::string& details);
// Outcome of a command that had a fault and was not killed, and of the same command, sent again.
TrialResult outcome_of_failure(const Writer& writer, const CommandResult& first, const std::string& fault);

}  // namespace sy::campaign
