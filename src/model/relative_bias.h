// Biases of attention scores by the distance from query to key: ALiBi and T5.
//
// ALiBi's bias is minus the distance to either side, times a slope per head. It never changes. T5's
// bias is a product of a learned table and a basis that maps distances to buckets:
//   bias[head, distance] = sum over r of table[head, r] * basis[r, distance]
// It is computed again after weights have changed.
#pragma once

#include <string>
#include <vector>

#include "src/model/context.h"
#include "src/params/block_specs.h"
#include "src/params/store.h"

namespace sy {

// Slopes of Press et al., "Train Short, Test Long" (2022): 2^(-8 i / heads) for i = 1 ... heads, if
// heads is a power of two. Otherwise the slopes of the next lower power, followed by every other
// slope of the next higher one.
std::vector<float> alibi_slopes(Index heads);
// Bucket of Raffel et al., "Exploring the Limits of Transfer Learning" (2020), causal. The first
// half of the buckets hold one distance each. The others hold ranges that grow geometrically up to
// max_distance. The last one also holds all greater distances.
Index t5_bucket(Index distance, Index buckets, Index max_distance);
// The same if later keys are visible, too. distance: from the query back to the key. The first half
// of the buckets are of distances from 0 on, the second half of negative ones.
Index t5_bucket_of_both_sides(Index distance, Index buckets, Index max_distance);

class RelativeBias {
 public:
  // If `causal`, the biases are of n = distances: 0 to distances - 1. Otherwise they are of
  // n = 2 distances - 1, to both sides.
  // heads: range of all_heads that this rank holds. prefix: of the attention's parameters.
  RelativeBias(const RelativeSpec& spec, bool causal, Index distances, Index all_heads, Range heads, ParamStore& store,
               const std::string& prefix);

  bool learned() const { return static_cast<bool>(learned_); }
  // AttentionDesc::bias of these heads: [Hl, n] f32
  ConstView bias() const { return bias_; }
  // Adds the gradient of the learned table. dbias: [Hl, n]
  void backward(const ExecutionContext& context, ConstView dbias) const;

 private:
  Tensor bias_;         // [Hl, n] f32, in descending order of distance
  Param learned_;       // T5's table: [Hl, buckets]; empty for ALiBi
  Tensor basis_;        // T5's basis: [buckets, n] f32, in the order of bias_
  Tensor learned_f32_;  // T5's table as f32; empty if the weights are f32
};

// Returns x as f32: x itself, or a copy in scratch memory.
ConstView as_f32(const ExecutionContext& context, ConstView x);

}  // namespace sy
