// The mixture-of-experts layer: route -> dispatch -> grouped expert FFN -> combine.
#pragma once

#include <optional>

#include "dist/exchange.h"
#include "src/model/mlp.h"
#include "src/model/router.h"

namespace sy {

class Moe {
 public:
  // A: tokens that arrived from all ranks of the expert-parallel group, each of them once. R: rows that this rank's experts
  // work on, by (local expert, arrived token); they are taken from what arrived whenever they are needed, so that what is kept does not grow
  // with the number of experts of a token (Guo et al., "SonicMoE", 2025), and neither is what the experts make of them.
  struct Saved {
    Router::Saved router;
    std::optional<Exchange> exchange;
    ConstView x;        // [T, D] the input
    ConstView arrived;  // [A, D] the tokens' inputs; on one rank the input itself
    View tokens;        // [R] i32 row -> arrived token
    View slots;         // [A, k] i32 assignment -> row, or -1
    View offsets;       // [E / ep + 1] i32 of ExpertRows
    View gates;         // [R] the weight of each row
    View h;             // [R, halves * F]
    Mlp::Saved shared;
  };

  Moe(const MoeSpec& spec, Index d_model, ParamStore& store, const std::string& prefix, RouterTables tables);

  // to: [T, D] sum over chosen experts of weight * expert(x: [T, D]), + shared experts(x). observer: of Router::forward.
  void forward(const Pass& pass, ConstView x, Output to, Saved& s, const RoutingObserver* observer) const;
  // dx: [T, D] = the gradient through the layer of dy: [T, D]
  void backward(const Pass& pass, ConstView dy, Saved& s, View dx) const;

 private:
  // Finds the rows of what arrived, at most n: the tables of s, and its gates. places, weights: [A, k].
  void sort(const Pass& pass, ConstView places, ConstView weights, Index first_place, Index n, Saved& s) const;
  FfnActivation activation_;
  Index width_;  // F
  Router router_;
  // With etp > 1, F is this rank's part of an expert's width.
  MatrixParam up_, down_;       // [E / ep, halves * F, D], [E / ep, D, F]
  Param up_bias_, down_bias_;   // [E / ep, halves * F], [E / ep, D / etp]; or none
  Index down_bias_column_ = 0;  // the first of the D outputs that down_bias_ is of
  std::optional<Mlp> shared_;
};

}  // namespace sy
