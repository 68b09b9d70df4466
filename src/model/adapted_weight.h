// A weight of GEMMs with its LoRA adapters: W + scale * B A (src/params/lora.h).
//
// Products with tokens use the sum, which is made in scratch memory for each of them. Its cost is
// that of `rank` more tokens. All sublayers, fused operations and layouts thus work unchanged. The
// gradients of A and B are products of low rank; no gradient of W exists.
// docs/design/memory.md compares this with adding products of low rank in forward.
#pragma once

#include "kernels/ops/grouped_gemm.h"
#include "src/model/context.h"
#include "src/params/store.h"

namespace sy {

class AdaptedWeight {
 public:
  AdaptedWeight() = default;
  // param, shape: see ParamStore::register_matrix
  AdaptedWeight(ParamStore& store, const Param& param, const Shape& shape);

  // Shape of the weight: [N, Q] or [E, N, Q].
  const Shape& shape() const { return param_.weight.values.shape(); }
  // Columns of the products of the adapters, P * rank; 0: no adapters.
  Index adapter_width() const { return param_.adapter ? std::ssize(param_.adapter->blocks) * param_.adapter->rank : 0; }
  // Returns the weight as an operand of GEMMs. With adapters it is in scratch memory of the
  // caller's scope.
  Weight sum(const ExecutionContext& context) const;
  // Adds the gradients of a product y = x W^T: dW += dy^T x. With adapters, those of A and B
  // instead. No-op if the weight is frozen. W is one matrix.
  void backward(const ExecutionContext& context, ConstView dy, ConstView x);
  // Does the same for a stack of matrices.
  void backward(const ExecutionContext& context, const GatheredRows& dy, const GatheredRows& x,
                const GroupOffsets& groups);

 private:
  // Does the same for rows dy and x of either kind, by products of one matrix or of a stack.
  // - rows: number of rows of x
  // - fprop(w, y): y = x w^T, dgrad(w, dx): dx = dy w
  // - wgrad(dy, x, accumulate, dw): dw = dy^T x, dw += if `accumulate`
  void backward_by(const ExecutionContext& context, Index rows, const auto& dy, const auto& x, const auto& fprop,
                   const auto& dgrad, const auto& wgrad);
  // Returns B as [.., N, P * rank]: block p has the rows of block p in its columns, and zeros in
  // others. If there is one block, returns B itself.
  ConstView spread_b(const ExecutionContext& context) const;

  MatrixParam param_;
  // Row of B, in all blocks, or -1, of each row and block of the weight: [E * N * P] i32. The
  // second is its inverse. Both are empty if B is the only block.
  Tensor spread_, gather_;
};

}  // namespace sy
