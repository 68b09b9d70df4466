// Costs of a model by its sizes: parameters, FLOPs, cache memory. Pure functions.
#pragma once

#include "src/params/specs.h"

namespace sy {

struct ModelCosts {
  ParamCount parameters;
  // Training FLOPs of one token, forward and backward, on average over a sequence of seq_len
  // tokens: 6 per weight that multiplies the token, and those of SublayerCosts.
  double flops_per_token;
  // Bytes that a token adds to a bf16 cache in all layers: keys and values, or their latent.
  Index kv_bytes_per_token;
};

ModelCosts model_costs(const Config& config, Index vocab);

}  // namespace sy
