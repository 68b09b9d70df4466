// QK-norm: a norm of queries and keys (Henry et al., "Query-Key Normalization for Transformers",
// 2020), with RMSNorm or LayerNorm instead of the l2 norm. It norms each head, or the whole
// projection (OLMo team, "2 OLMo 2 Furious", 2024).
#pragma once

#include "kernels/ops/operation.h"

namespace sy {

// QK-norm of each head.
struct HeadQkNorm {
  Index q_heads, k_heads;
  float eps;
  RopePairs pairs = RopePairs::half;
  float offset = 0;                   // see NormDesc::offset
  NormKind kind = NormKind::rmsnorm;  // or layernorm
  // true: one weight for each head; false: one for all queries and one for all keys
  bool each_head = false;
  constexpr Index weights() const { return each_head ? q_heads + k_heads : 2; }
  constexpr Index weight_of(Index head) const { return each_head ? head : head >= q_heads; }
};

// QK-norm over the whole projection. A row holds the elements of some query heads, then of some key
// heads, then others.
struct ProjectionQkNorm {
  Index queries, keys;  // elements of a row that belong to queries, and to keys
  // The same over all ranks that share the heads; divisors of the mean square.
  Index all_queries, all_keys;
  float eps;
  float offset = 0;  // see NormDesc::offset
};

namespace ops {

// QK-norm of each head, fused with the rotation. The first q_heads + k_heads heads are normalised,
// multiplied by their weight, and rotated as by Rope if there is a table. The other heads are
// copied.
struct HeadQkNormForward {
  static constexpr std::string_view name = "head_qk_norm_forward";
  ConstView x;  // [T, all_heads, hd] c
  // [2, hd] c (queries, keys), or [q_heads + k_heads, hd] c (one row for each head)
  ConstView weight;
  ConstView positions = {};  // [T] i32 rows of the table; empty if there is no table
  ConstView table = {};      // [positions, rot/2, 2] = cos, sin; may be empty
  HeadQkNorm desc;
  View y;        // [T, all_heads, hd] c
  View inverse;  // [T, q_heads + k_heads] = 1 / root mean square (LayerNorm: of x - mean)
  Cost cost() const { return Cost().reads(x).writes(y, inverse); }
};

// Gradients of HeadQkNormForward with respect to x and weight.
struct HeadQkNormBackward {
  static constexpr std::string_view name = "head_qk_norm_backward";
  ConstView dy;              // [T, all_heads, hd] c
  ConstView x;               // [T, all_heads, hd] c
  ConstView weight;          // as in HeadQkNormForward
  ConstView inverse;         // [T, q_heads + k_heads] of HeadQkNormForward
  ConstView positions = {};  // as in HeadQkNormForward
  ConstView table = {};
  HeadQkNorm desc;
  View dx;       // [T, all_heads, hd] c
  View dweight;  // the shape of weight +=
  Cost cost() const { return Cost().reads(dy, x, inverse).writes(dx); }
};

// QK-norm over the whole projection, without rotation. The queries of a token are divided by the
// root mean square of all of them together; so are its keys. If ranks share the heads, each rank
// sums over its own heads, and the caller reduces the sums between these operations.
//   sums = the sums of x * y over the queries, and over the keys
struct ProjectionQkNormSums {
  static constexpr std::string_view name = "projection_qk_norm_sums";
  ConstView x;  // [T, row] c
  ConstView y;  // [T, row] c
  ProjectionQkNorm desc;
  View sums;  // [T, 2]
  Cost cost() const;
};

// y = x / root mean square * weight for queries and keys; the other columns are copied.
struct ProjectionQkNormForward {
  static constexpr std::string_view name = "projection_qk_norm_forward";
  ConstView x;        // [T, row] c
  ConstView weight;   // [queries + keys] c
  ConstView squares;  // [T, 2] the sums of x * x
  ProjectionQkNorm desc;
  View y;  // [T, row] c
  Cost cost() const { return Cost().reads(x, squares).writes(y); }
};

// Gradients of ProjectionQkNormForward with respect to x and weight.
struct ProjectionQkNormBackward {
  static constexpr std::string_view name = "projection_qk_norm_backward";
  ConstView dy;        // [T, row] c
  ConstView x;         // [T, row] c
  ConstView weight;    // [queries + keys] c
  ConstView squares;   // [T, 2] the sums of x * x
  ConstView products;  // [T, 2] the sums of dy * y. A rotation of both does not change them.
  ProjectionQkNorm desc;
  View dx;       // [T, row] c
  View dweight;  // [queries + keys] +=
  Cost cost() const { return Cost().reads(dy, x, squares, products).writes(dx); }
};

}  // namespace ops

}  // namespace sy
