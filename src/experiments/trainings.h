// The trainings of an experiment: each a run folder of its own, one after the other.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/config.h"

namespace sy {

struct Training {
  std::filesystem::path run;
  std::filesystem::path config;       // of which the settings are
  std::vector<std::string> settings;  // "--key=value"
  int ranks = 1;
  Index steps = 0;    // that it has in the end
  std::string label;  // for progress
  // If true, the run is timed. The launcher starts a single rank, too, so that all runs have the same
  // settings. An interrupted run starts again, as the first steps after a restart are slower.
  bool measured = false;
};

// The settings in which the run in this folder differs from `config`; empty if there is no run.
std::vector<std::string> other_settings(const std::filesystem::path& run, const Config& config);
// Throws InputError where the folder holds a run of other settings than `config`: it would be taken for this one.
void check_folder(const std::filesystem::path& run, const Config& config);

// Adds the warnings that the run printed, by RUN.log, to those that are there; each stays once.
void add_warnings(const std::filesystem::path& run, std::vector<std::string>& warnings);

// Trains what is not complete, and tells on standard error how far it is. A folder that is named twice is one run. Returns why
// runs failed, by their folders: the others are trained all the same. Nothing where this process was asked to stop; called again,
// it goes on there. launcher: src/experiments/program.h.
std::optional<std::map<std::filesystem::path, std::string>> train_all(const std::vector<Training>& trainings,
                                                                      const std::string& launcher);

}  // namespace sy
