// Attention with locality-sensitive hashing (Kitaev et al., "Reformer", 2020) as data.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/lsh.h"
#include "src/params/attention_spec.h"

namespace sy {

// The query of a token is its projection x, and its key is x / |x|. Each head has one of both.
struct LshAttentionSpec : CoreAttentionSpec {
  Index rounds = 1;
  // Factors of the number of buckets, all of them even. Empty: one bucket, without a hash.
  std::vector<Index> factors = {};
  LshDesc desc = {};
  std::uint64_t seed = 0;  // of the rotations
  // [heads, key_width, rounds, half the sum of the factors]; empty: random numbers
  std::vector<float> rotations = {};

  Index rotation_columns() const;
  // Returns the shape of ops::LshSort::order for this number of heads. It has no dimensions if
  // tokens are not sorted: there is one bucket, or one chunk.
  Shape order_shape(Index sequences, Index seq_len, Index of_heads) const;
};

void add_params(ParamList& list, const std::string& name, const LshAttentionSpec& a);
SublayerCosts costs(const LshAttentionSpec& a, Index seq_len);

}  // namespace sy
