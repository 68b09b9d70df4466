// Comparison of what the ranks of a job were started with: settings, program, data, checkpoint.
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

// Throws AgreedError (exit code 2) on every rank if the settings differ between ranks. The message names the ranks, their
// host, the names that differ and both values, and ends with `advice`. Collective: one all-reduce of 16 bytes, and more only if
// the settings differ.
void check_rank_settings(Comm& world, const std::vector<RankSetting>& settings, std::string_view advice);

}  // namespace sy
