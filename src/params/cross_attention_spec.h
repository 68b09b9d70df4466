// Attention of a decoder's tokens to the outputs of an encoder, as data.
#pragma once

#include <string>

#include "src/params/attention_spec.h"

namespace sy {

// Grouped-query attention whose keys and values are made of an encoder's outputs. All of them are
// visible, and there are no positions.
struct CrossAttentionSpec : CoreAttentionSpec {
  Index kv_heads;
  Index encoder_length;  // number of the encoder's tokens, for costs
  bool qkv_bias = false, out_bias = false;
};

void add_params(ParamList& list, const std::string& name, const CrossAttentionSpec& a);
// The keys and values are computed once for each token of the encoder. SublayerCosts counts them as
// if each token of the decoder had them.
SublayerCosts costs(const CrossAttentionSpec& a, Index seq_len);
NamedSizes sizes_of(const CrossAttentionSpec& a);  // K: kv heads

}  // namespace sy
