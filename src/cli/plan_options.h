// The options that `switchyard plan` shares with `train --dry-run`.
#pragma once

#include "src/cli/options.h"
#include "src/plan/plan.h"

namespace sy {

// before: what the help of each begins with.
void add_plan_options(po::options_description& options, const std::string& before = "");
// Reads the machine into `options`, adds what is wrong to `errors`, and adds the check that reads the load to `checks`. "config" is
// one of the parsed options.
void read_plan_options(const po::variables_map& given, PlanOptions& options, std::vector<ConfigCheck>& checks,
                       ErrorList& errors);

}  // namespace sy
