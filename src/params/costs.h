// Costs of a model by its sizes: parameters, FLOPs, cache memory. Pure functions.
#pragma once

#include "src/params/specs.h"

namespace sy {

// Sizes of a model, and its costs per token.
struct ModelCosts {
  ParamCount parameters;
  // Training FLOPs of one token, forward and backward, averaged over a sequence of seq_len tokens.
  // In an encoder-decoder, they are averaged over the tokens of both sequences of a sample.
  // They are 6 for each weight of ParamCount::products (Kaplan et al., "Scaling laws", 2020), and
  // those of SublayerCosts. With LoRA, they are 4 for each of these weights and of the adapters.
  // docs/reference/measures.md has the definition.
  double flops_per_token;
  // Bytes that a token adds to a bf16 cache in all layers: keys and values, or their latent.
  Index kv_bytes_per_token;
};

// vocab: number of rows of the embedding.
ModelCosts model_costs(const Config& config, Index vocab);

}  // namespace sy
