// Linear layer: y = x W^T + b.
//
// A column-parallel Linear holds rows of W and takes gathered tokens. A row-parallel one holds
// columns of W; forward_sum sums its partial outputs over the tp ranks. Operands of forward(),
// backward_input() and backward_weight() may have other dimensions of as many elements.
#pragma once

#include "src/model/adapted_weight.h"

namespace sy {

class Linear {
 public:
  // weight: [out..., in...] of the store, read as [out, in] with `in` columns.
  // bias: [out], or empty.
  Linear(ParamStore& store, Param weight, Index in, Param bias);
  // Has the weight `name`.weight, and the bias `name`.bias if the store has it.
  // fused: number of the weights, from this one on, that form one matrix (ParamStore::get_fused)
  Linear(ParamStore& store, const std::string& name, int fused = 1);

  Index inputs() const { return weight_.shape()[1]; }
  Index outputs() const { return weight_.shape()[0]; }

  // y: [T, out] = x: [T, in] W^T + b; y may be f32 if the weights are not; y += if `accumulate`
  void forward(const ExecutionContext& context, ConstView x, View y, bool accumulate = false) const;
  // First GEMM of an FFN, with its activation (ops::FfnForward). x: [T, in], h: [T, out]
  void forward_activated(const ExecutionContext& context, const FfnActivation& activation, ConstView x,
                         ConstView row_scale, View h, View y) const;
  // Row-parallel. to: [T, out] = sum over tp of (x W^T), + b. x: [B * S, in]
  void forward_sum(const ExecutionContext& context, ConstView x, Output to) const;
  // Backward of the last GEMM of an FFN, dy W, and of the activation before it
  // (ops::FfnBackward). dy: [T, out]
  void backward_activated(const ExecutionContext& context, const FfnActivation& activation, ConstView dy, ConstView h,
                          ConstView row_scale, View dh, View drow_scale, View y) const;
  // dx: [T, in] = dy: [T, out] W; dx += if `accumulate`
  void backward_input(const ExecutionContext& context, ConstView dy, View dx, bool accumulate = false) const;
  // Column-parallel. dx: [T, in] = sum over tp of (dy W), own tokens. dy: [B * S, out]
  void backward_input_sum(const ExecutionContext& context, ConstView dy, View dx) const;
  // dW += dy^T x, or the same for the adapters of LoRA; no-op if W is frozen
  void backward_weight(const ExecutionContext& context, ConstView dy, ConstView x);
  // db += column sums of dy: [T, out]. If row-parallel, dy is of the rank's own tokens.
  void backward_bias(const ExecutionContext& context, ConstView dy) const;
  // Does both.
  void backward_params(const ExecutionContext& context, ConstView dy, ConstView x);
  // Row-parallel. Adds the gradients of W and b. Returns the gradient with respect to x, of all
  // tokens, in its shape and in scratch memory of the caller. dy: [T, out] of the rank's own tokens
  View backward_sum(const ExecutionContext& context, ConstView dy, ConstView x);

 private:
  // Returns inputs as [T, in], and the outputs of inputs x as [T, out].
  template <class V>
  V input_rows(V x) const {
    return x.reshape({x.elements() / inputs(), inputs()});
  }
  template <class V>
  V output_rows(V y, ConstView x) const {
    return y.reshape({x.elements() / inputs(), outputs()});
  }

  AdaptedWeight weight_;  // [out, in]
  Param bias_;            // [out]
};

}  // namespace sy
