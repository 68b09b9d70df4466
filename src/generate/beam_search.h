// Beam search: the likeliest targets that an encoder-decoder gives for sources.
//
// The sources go to the data-parallel ranks round-robin, and each rank searches for one at a time.
// It encodes the source once, and then computes the next token of all beams in each pass. A rank
// that has finished takes part with an empty batch while others need its experts.
#pragma once

#include <span>
#include <vector>

#include "src/generate/generate.h"

namespace sy {

struct BeamOptions {
  Index beams = 1;     // number of targets that are extended at the same time; 1: greedy search
  Index tokens = 200;  // maximum number of tokens of a target, its end included
  // The score of a target is the sum of the log-probabilities of its tokens, divided by their
  // number to this power. Its end token counts.
  double length_penalty = 1;
  std::int32_t start = 0;  // first input of the decoder, not part of the target
  std::int32_t end = -1;   // ends a target, and is not part of it; -1: none
  Index token_ids = 0;     // only the first `token_ids` rows of the vocabulary are tokens; 0: all
};

// Returns the best target of each source. Collective.
// sources: none is empty, and all end as those of the training do; the same on all ranks.
std::vector<Continuation> search_targets(Engine& engine, std::span<const std::vector<std::int32_t>> sources,
                                         const BeamOptions& options);

}  // namespace sy
