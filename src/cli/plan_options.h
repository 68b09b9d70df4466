// The options that `switchyard plan` shares with `train --dry-run`.
#pragma once

#include "src/cli/options.h"
#include "src/plan/plan.h"

namespace sy {

// before: what the help of each begins with.
void add_plan_options(po::options_description& options, const std::string& before = "");
// Of parsed options, of which "config" is one. Throws InputError.
PlanOptions plan_options(const po::variables_map& given, const Config& config);

}  // namespace sy
