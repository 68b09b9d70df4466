// Costs of a model by its sizes: parameters, FLOPs, cache memory. Pure functions.
#pragma once

#include "kernels/attention_mask.h"
#include "src/params/specs.h"

namespace sy {

struct ModelCosts {
  ParamCount parameters;
  // Training FLOPs of one token, forward and backward, on average over a sequence of seq_len
  // tokens. There are 6 FLOPs per weight that multiplies the token.
  // There are 6 (key width + value width) per head and visible key. (Chowdhery et al., "PaLM",
  // 2022, appendix B, also counts later keys.)
  double flops_per_token;
  // Bytes that a token adds to a bf16 cache in all layers: keys and values, or their latent.
  Index kv_bytes_per_token;
};

ModelCosts model_costs(const Config& config, Index vocab);

// Returns the mean number of keys that a token sees in a sequence of `tokens`, including its own.
// A window of 0 means all keys; so does an empty pattern.
double mean_visible_keys(Index tokens, Index window, const SparsePattern& sparse = {});

}  // namespace sy
