// Fillings of hidden tokens by an encoder.
#pragma once

#include <span>
#include <vector>

#include "src/data/tokenizer.h"
#include "src/model/engine.h"

namespace sy {

struct Filling {
  std::int32_t id;
  double probability;
};

// Returns the ids of a text with hidden tokens. Their places are the names [MASK] and <mask>.
std::vector<std::int32_t> encode_masked(const Tokenizer& tokenizer, std::int32_t mask_token, const std::string& text);

// Returns the most likely fillings of each hidden token of a text: [hidden tokens][count].
// Each is predicted from the text with all hidden tokens. Ties go to the lower id.
// - token_ids: only ids below it are fillings, and mask_token is not. Probabilities sum to 1 over
//   the whole vocabulary.
// Collective.
std::vector<std::vector<Filling>> fill_mask(Engine& engine, std::span<const std::int32_t> ids, std::int32_t mask_token,
                                            Index token_ids, Index count);

}  // namespace sy
