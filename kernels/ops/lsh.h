// Attention with locality-sensitive hashing (Kitaev et al., "Reformer", 2020, section 2). Queries
// and keys share a projection x. The query of a token is x, and its key is x / |x|.
//
// In each round, a hash puts similar tokens into one bucket. The tokens, sorted by bucket and then
// by position, are cut into chunks. A query sees the keys of its own chunk, of `before` chunks
// before it and of `after` chunks after it. The chunks of all rounds form a ring: the first chunk
// of a round follows the last one of the round before.
//
//   score = scale x_i . x_j / |x_j|      weight = exp(score - lse)      out = sum of weight v
//
// The sum is over the keys that the query sees in all rounds together. A key counts as often as it
// is seen, so the weight of a round is the exponential of the logsumexp of its scores. A query does
// not see its own key, unless it sees no other key; its output is then its own value.
#pragma once

#include <vector>

#include "kernels/attention.h"
#include "kernels/ops/operation.h"

namespace sy {

// Chunks of sorted tokens, and what a query sees of them.
struct LshDesc {
  Index chunk = 64;             // number of tokens of a chunk
  Index before = 1, after = 0;  // number of chunks that a query sees besides its own
  bool causal = true;           // true: a query sees no later position
  float scale = 1;              // of the scores
  // Added to |x|^2 before the root is taken. transformers adds the width times 1e-6.
  float epsilon = 0;
};

namespace ops {

// Sorts the tokens of each head and round by bucket, and then by position. A bucket has a digit for
// each factor f of the number of buckets. The first digit counts least. A digit is the index of the
// largest of f numbers, which are x R and -x R. R has f / 2 columns.
struct LshSort {
  static constexpr std::string_view name = "lsh_sort";
  ConstHeads x;                // [B, S, H, hd] c
  ConstView rotations;         // [H, hd, rounds, half the sum of all factors]
  std::vector<Index> factors;  // of the number of buckets; all are even
  ConstView lengths = {};      // [B] i32 number of tokens of each sequence, or empty: S
  // [B, H, rounds, P] i32 positions; -1 after the last. P: at least S
  View order;
  bool is_empty() const { return order.elements() == 0; }
  Cost cost() const;
};

// Attention of the tokens in sorted order.
struct LshAttentionForward {
  static constexpr std::string_view name = "lsh_attention_forward";
  ConstHeads x;  // [B, S, H, hd] c
  ConstHeads v;  // [B, S, H, vd] c
  // [B, H, rounds, P] i32 of LshSort, P a multiple of desc.chunk. Empty: one round in the order of
  // positions. If S is at most desc.chunk, each query then sees all keys once.
  ConstView order = {};
  ConstView lengths = {};  // of LshSort, if `order` is empty
  LshDesc desc;
  View out;  // [B, S, H, vd] c
  View lse;  // [B, H, S]; 0 if a query sees its own key alone
  bool is_empty() const { return out.elements() == 0; }
  Cost cost() const;
};

// Gradients with respect to x and v. `order` is constant.
struct LshAttentionBackward {
  static constexpr std::string_view name = "lsh_attention_backward";
  ConstView dout;                      // [B, S, H, vd] c
  ConstHeads x;                        // [B, S, H, hd] c
  ConstHeads v;                        // [B, S, H, vd] c
  ConstView out;                       // [B, S, H, vd] c of LshAttentionForward
  ConstView lse;                       // [B, H, S] of LshAttentionForward
  ConstView order = {}, lengths = {};  // of LshAttentionForward
  LshDesc desc;
  Heads dx;  // [B, S, H, hd] c
  Heads dv;  // [B, S, H, vd] c
  bool is_empty() const { return out.elements() == 0; }
  Cost cost() const;
};

}  // namespace ops

}  // namespace sy
