// Logits after every position of one sequence, or at it in an encoder, for comparison with other
// programs.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "src/model/engine.h"

namespace sy {

// Returns the logits [ids.size(), vocabulary] f32, dropless. Collective: every data-parallel rank
// computes the same sequence. The engine must have as many positions as `ids`. progress(done,
// total) counts positions. In a model with a visible prefix, `ids` are the prefix.
std::vector<float> sequence_logits(Engine& engine, std::span<const std::int32_t> ids,
                                   const std::function<void(Index, Index)>& progress);

// Returns the logits [target.size(), vocabulary] f32 after each input of the decoder of an
// encoder-decoder, whose encoder reads `source`. Otherwise as sequence_logits(). In a model with a
// visible prefix, `source` is the prefix, and `target` follows it; the result is then
// [source.size() + target.size(), vocabulary].
std::vector<float> pair_logits(Engine& engine, std::span<const std::int32_t> source,
                               std::span<const std::int32_t> target);

}  // namespace sy
