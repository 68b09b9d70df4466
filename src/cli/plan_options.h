// Options that `switchyard plan` shares with `train --dry-run`.
#pragma once

#include "src/cli/options.h"
#include "src/plan/plan.h"

namespace sy {

// before: prefix of each help text.
void add_plan_options(po::options_description& options, const std::string& before = "");
// Reads the machine into `options`, adds errors to `errors`, and adds the check that reads the load
// to `checks`. "config" must be one of the parsed options. Returns the file of the machine.
MachineFile read_plan_options(const po::variables_map& arguments, PlanOptions& options,
                              std::vector<ConfigCheck>& checks, ErrorList& errors);

}  // namespace sy
