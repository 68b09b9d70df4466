// Operations on columns of heads, which latent attention combines.
#pragma once

#include "kernels/attention.h"
#include "kernels/ops/operation.h"

namespace sy::ops {

// y[b, s, h] = x[b, s, h], or x[b, s, 0] if x has one head. x and y share no element.
struct BroadcastHeads {
  static constexpr std::string_view name = "broadcast_heads";
  ConstHeads x;  // [B, S, N, w] or [B, S, 1, w] c, columns of any heads
  Heads y;       // [B, S, N, w] c, columns of any heads
  Cost cost() const { return Cost().reads(x).writes(y); }
};

// y[b, s, 0] = the sum over h of x[b, s, h]. It is the adjoint of the broadcast of one head.
struct ReduceHeads {
  static constexpr std::string_view name = "reduce_heads";
  ConstHeads x;  // [B, S, N, w] c, columns of any heads
  Heads y;       // [B, S, 1, w] c, columns of any heads
  Cost cost() const { return Cost().reads(x).writes(y); }
};

// Batched GEMM with one matrix for each head:
//   GemmPass::fprop: y[b, s, h] = w[h] x[b, s, h], n elements from q
//   GemmPass::dgrad: y[b, s, h] = w[h]^T x[b, s, h], q elements from n
// x and y must have no gap between sequences: sequence_stride = positions * token_stride.
struct BatchedHeadGemm {
  static constexpr std::string_view name = "batched_head_gemm";
  ConstHeads x;  // [B, S, N, q] c; dgrad: [B, S, N, n] c
  ConstView w;   // [N, n, q] c
  GemmPass pass;
  Heads y;  // [B, S, N, n] c; dgrad: [B, S, N, q] c
  Cost cost() const;
};

}  // namespace sy::ops
