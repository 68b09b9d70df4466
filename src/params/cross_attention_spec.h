// Attention of a decoder's tokens to the outputs of an encoder, as data.
#pragma once

#include <string>

#include "src/params/attention_spec.h"

namespace sy {

// Grouped-query attention whose keys and values are made of an encoder's outputs. A query sees all
// outputs but padding. In CoreAttentionSpec, causal is false, window is 0, and both widths are
// equal. rope, sparse, relative and sinks are empty or false.
struct CrossAttentionSpec : CoreAttentionSpec {
  Index encoder_length;  // number of encoder tokens in a sequence, for costs
};

void add_params(ParamList& list, const std::string& name, const CrossAttentionSpec& a);
// Counts the scores and weighted sums alone: each token reads encoder_length keys. seq_len is not
// used. model_costs() counts the key and value projections once for each token of the encoder.
SublayerCosts costs(const CrossAttentionSpec& a, Index seq_len);

}  // namespace sy
