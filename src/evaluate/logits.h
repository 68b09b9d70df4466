// The logits behind every position of one sequence, for comparison with other programs.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "src/model/engine.h"

namespace sy {

// [ids.size(), vocabulary] f32. Dropless. Collective: every data-parallel rank computes the same sequence. The engine has room
// for so many positions. progress(done, total): positions.
std::vector<float> sequence_logits(Engine& engine, std::span<const std::int32_t> ids,
                                   const std::function<void(Index, Index)>& progress);

}  // namespace sy
