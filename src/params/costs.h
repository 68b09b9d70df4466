// What a model costs, by its sizes alone: parameters, arithmetic, memory of a cache. Pure.
#pragma once

#include "kernels/attention.h"
#include "src/params/specs.h"

namespace sy {

struct ModelCosts {
  ParamCount parameters;
  // FLOPs of training on one token, forward and backward, with seq_len tokens in a sequence: 6 for each weight that the token
  // is multiplied by, and 6 (key width + value width) for each head and key that it sees, on average over the sequence
  // (Chowdhery et al., "PaLM", 2022, appendix B, which counts the keys behind the token too).
  double flops_per_token;
  // Bytes of keys and values, or of the latent that they are made of, that a token adds to a cache of bf16, in all layers.
  Index kv_bytes_per_token;
};

ModelCosts model_costs(const Config& config, Index vocab);

// How many keys a token sees, on average over a sequence of `tokens`, itself included. window: 0: all. sparse: the pattern
// among these, of Sparsity::strided, fixed or longformer; empty: all.
double mean_visible(Index tokens, Index window, const Sparsity& sparse = {});

}  // namespace sy
