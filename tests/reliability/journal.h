// The journal of the campaign: one JSON line for each batch of trials.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/reliability/campaign.h"

namespace sy::campaign {

struct Batch {
  std::string row;
  Index first = 0, trials = 0;  // numbers of the trials
  Index points = 0;             // Row::points
  std::array<Index, num_outcomes> outcomes{};
  double seconds = 0;
  std::string commit = {}, date = {};
};

// Throws InputError if a line cannot be read. Empty if there is no file.
std::vector<Batch> read_journal(const fs::path& path);
void add_to_journal(const fs::path& path, const Batch& batch);
// Number of the first trial of a row that no batch has.
Index next_trial(const std::vector<Batch>& journal, const std::string& row);
// The table of all rows as Markdown.
std::string summary(const std::vector<Batch>& journal);

}  // namespace sy::campaign
