// Biases of attention's scores by the distance from query to key: ALiBi's and T5's. ALiBi's is a slope by head, times minus
// the distance, and never changes. T5's is a product of two matrices,
//   bias[head, distance] = sum over r of table[head, r] * basis[r, distance],
// of a table that is learned and a basis that says which bucket a distance is in; it is made anew when weights have changed.
#pragma once

#include <string>
#include <vector>

#include "src/model/pass.h"
#include "src/params/block_specs.h"
#include "src/params/store.h"

namespace sy {

// Press et al., "Train Short, Test Long" (2022): 2^(-8 i / heads), i = 1 ... heads, where heads is a power of two.
// Otherwise those of the next lower power, and after them every other one of the next higher.
std::vector<float> alibi_slopes(Index heads);
// Raffel et al., "Exploring the Limits of Transfer Learning" (2020), causal: half of the buckets are of one distance each,
// the others of ranges that grow by a factor up to max_distance. The last one has all that is farther, too.
Index t5_bucket(Index distance, Index buckets, Index max_distance);

class RelativeBias {
 public:
  // distances: it is of 0, 1 ... distances - 1. heads: [begin, end) of all, those that this rank holds. prefix: of the
  // attention's parameters.
  RelativeBias(const RelativeSpec& spec, Index distances, Index all_heads, Range heads, ParamStore& store,
               const std::string& prefix);

  bool learned() const { return static_cast<bool>(learned_); }
  // AttentionDesc::bias of these heads: [Hl, distances] f32
  ConstView bias() const { return bias_; }
  // Where it is learned. dbias: [Hl, distances]
  void backward(const Device& device, ConstView dbias) const;

 private:
  Tensor bias_;         // [Hl, distances] f32, the farthest first
  Param learned_;       // T5's table: [Hl, buckets], or none
  Tensor basis_;        // T5's: [buckets, distances] f32, as bias_ lies
  Tensor learned_f32_;  // T5's table, where weights are of another type
};

// x as f32, where it is not: in scratch memory.
ConstView as_f32(const Device& device, ConstView x);

}  // namespace sy
