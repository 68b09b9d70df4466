// Beam search: the likeliest targets that an encoder-decoder gives for sources.
//
// The data-parallel ranks search in rounds, one source each. A rank encodes its source once. Each
// pass then computes the next token of all its beams. A rank that has finished takes part in the
// round with an empty batch, because others need its experts.
// A search ends when `beams` targets have ended and no beam has a better score at its length.
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
  std::int32_t end = -1;   // ends a target, and is not returned; -1: no token ends a target
  Index token_ids = 0;     // only the first `token_ids` rows of the vocabulary count; 0: all count
};

// Returns the target with the best score that the search of each source finds. Collective.
// sources: the same on all ranks. None is empty. If training has an end token, each ends with it.
std::vector<Continuation> search_targets(Engine& engine, std::span<const std::vector<std::int32_t>> sources,
                                         const BeamOptions& options);

}  // namespace sy
