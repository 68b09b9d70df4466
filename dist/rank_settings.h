// Check that all ranks have equal settings: configuration, program, data and checkpoint.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dist/comm.h"

namespace sy {

// A setting that must be equal on all ranks, as text.
struct RankSetting {
  std::string name, value;
};

// Throws CollectiveError (exit code 2) on every rank if the settings differ between ranks.
// The message names the ranks that differ from rank 0, the first of their hosts, and both values.
// At most three groups of ranks are shown. The message ends with `advice`.
// Collective: one all-reduce of 16 bytes if all settings are equal.
void check_rank_settings(Comm& world, const std::vector<RankSetting>& settings, std::string_view advice);

}  // namespace sy
