// Mixture-of-experts layer: route -> dispatch -> grouped expert FFN -> combine.
#pragma once

#include <optional>

#include "dist/exchange.h"
#include "src/model/mlp.h"
#include "src/model/router.h"

namespace sy {

class Moe {
 public:
  // State that forward saves for backward.
  // A: number of tokens received from all ranks of the expert-parallel group. A token occurs once,
  // even if several of this rank's experts compute it.
  // R: number of rows of this rank's experts, ordered by (local expert, received token).
  //
  // The inputs of the rows are gathered from the received tokens whenever they are needed, and
  // expert outputs are not saved. The saved tokens therefore have A rows, not R (Guo et al.,
  // "SonicMoE", 2025).
  struct Saved {
    Router::Saved router;
    std::optional<Exchange> exchange;
    ConstView x;        // [T, D] input of forward, not copied
    ConstView arrived;  // [A, D] received tokens; x itself on one rank
    View tokens;        // [R] i32 row -> received token
    View slots;         // [A, k] i32 assignment -> row, or -1
    View offsets;       // [E / ep + 1] i32 of ExpertRows
    View gates;         // [R] weight of each row
    View h;             // [R, halves * F] inputs of the activation; halves: see MlpSpec
    Mlp::Saved shared;
  };

  Moe(const MoeSpec& spec, Index d_model, ParamStore& store, const std::string& prefix, RouterTables tables);

  // to: [T, D] = sum over chosen experts of weight * expert(x: [T, D]), + shared experts(x).
  // Dropped assignments add nothing. x must stay valid until backward. observer: see
  // Router::forward. Collective, as is backward.
  void forward(const Pass& pass, ConstView x, Output to, Saved& s, const RoutingObserver* observer) const;
  // dx: [T, D] = gradient with respect to x; dy: [T, D], with respect to the output. dx and dy must
  // not overlap. Adds the gradients of the parameters to those of the store.
  void backward(const Pass& pass, ConstView dy, Saved& s, View dx) const;

 private:
  // Builds the permutation of the received tokens, at most n rows: the tables and the gates of s.
  // places, weights: [A, k].
  void sort(const Pass& pass, ConstView places, ConstView weights, Index first_place, Index n, Saved& s) const;
  FfnActivation activation_;
  Index width_;  // F
  Router router_;
  // If etp > 1, F is the width of this rank's shard of an expert.
  MatrixParam up_, down_;       // [E / ep, halves * F, D], [E / ep, D, F]
  Param up_bias_, down_bias_;   // [E / ep, halves * F], [E / ep, D / etp]; or empty
  Index down_bias_column_ = 0;  // first of the D outputs that down_bias_ covers
  std::optional<Mlp> shared_;
};

}  // namespace sy
