// Runs checks on all ranks and collects their results.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/selftest/selftest.h"

namespace sy::selftest {

struct Checks {
  Comm& world;
  const Options& options;
  std::vector<Check> results = {};

  // Runs `check` on every rank, and collects what it finds. Returns true if no rank found an
  // error. Collective.
  // - local: the check has no collectives, and any exception of it is one of its errors.
  // - Otherwise only a CollectiveError, which all ranks throw, is one. Other exceptions pass
  //   through, since other ranks may wait in a collective.
  bool run(const std::string& name, bool local, const std::function<void(Finding&)>& check);
};

// Checks of short trainings on `device`, "cpu" or "cuda": each rank alone, all ranks together in
// several layouts, and a checkpoint. They use `folder`, which all ranks share. Collective.
void check_trainings(Checks& checks, const std::string& device, const std::filesystem::path& folder);

}  // namespace sy::selftest
