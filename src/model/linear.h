// y = x W^T + b. The one place where a weight matrix is asked for.
//
// Parallel over tp by what it is given: a column-parallel Linear holds rows of W and takes gathered tokens; a row-parallel
// one holds columns of W, and its outputs are partial sums that forward_sum adds up over the ranks.
#pragma once

#include "src/model/pass.h"
#include "src/params/store.h"

namespace sy {

class Linear {
 public:
  // weight: [out..., in...] of the store, read as [out, in] with `in` columns; bias: [out] or none.
  Linear(ParamStore& store, Param weight, Index in, Param bias = {});

  // y: [T, out] = x: [T, in] W^T + b; y may be f32 where weights are not
  void forward(const Device& device, ConstView x, View y) const;
  // The first product of an FFN, with its activation: Backend::ffn_forward. x: [T, in], h: [T, out]
  void forward_activated(const Device& device, const FfnActivation& activation, ConstView x, ConstView row_scale,
                         View h, View y) const;
  // Row-parallel. to: [T, out] sum over tp of (x W^T), + b. x: [B * S, in]
  void forward_sum(const Device& device, ConstView x, Output to) const;
  // Of the last product of an FFN, dy W with the activation before it: Backend::ffn_backward. dy: [T, out]
  void backward_activated(const Device& device, const FfnActivation& activation, ConstView dy, ConstView h,
                          ConstView row_scale, View dh, View drow_scale, View y) const;
  // dx: [T, in] = dy: [T, out] W; accumulate: dx +=
  void backward_input(const Device& device, ConstView dy, View dx, bool accumulate = false) const;
  // Column-parallel. dx: [T, in] = sum over tp of (dy W), own tokens. dy: [B * S, out]
  void backward_input_sum(const Device& device, ConstView dy, View dx) const;
  // dW += dy^T x
  void backward_weight(const Device& device, ConstView dy, ConstView x) const;
  // db += column sums of dy; of a row-parallel Linear dy is that of the own tokens. dy: [T, out]
  void backward_bias(const Device& device, ConstView dy) const;

 private:
  MatrixParam weight_;  // [out, in]
  Param bias_;          // [out]
};

}  // namespace sy
