// Mixture-of-experts layer: route -> dispatch -> grouped expert FFN -> combine.
#pragma once

#include <optional>

#include "dist/token_dispatcher.h"
#include "src/model/mlp.h"
#include "src/model/router.h"

namespace sy {

// MoE layer of the model, with this rank's experts.
class Moe {
 public:
  static constexpr const char* trace_name = "moe";

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
    std::optional<DispatchHandle> dispatch;
    ConstView x;  // [T, D] input of forward, not copied
    // [A, TokenRow::columns()] received tokens in the rows of their messages, whose values begin at
    // the column `first_value`. On one rank x itself, [T, D].
    ConstView received_tokens;
    Index first_value = 0;
    View tokens;       // [R] i32 row -> received token
    View row_id_map;   // [A, k] i32 assignment -> row, or -1
    View offsets;      // [E / ep + 1] i32 of GroupOffsets
    View row_weights;  // [R] weight of each row
    View h;            // [R, num_projections * F] inputs of the activation
    Mlp::Saved shared;
  };

  // - context: its store has the parameters, and must outlive this object
  // - prefix: "layers.3.moe."
  Moe(const MoeSpec& spec, const SublayerContext& context, const std::string& prefix);

  // Routes x, and writes the sum over chosen experts of weight * expert(x), + shared experts(x).
  // Shapes: x, to [T, D]. Dropped assignments add nothing. x must stay valid until backward.
  // Collective over mesh.expert_group and tp, as is backward.
  void forward(const LayerContext& layer, ConstView x, Output to, Saved& s) const;
  // See Sublayer. With Recompute::experts the first expert products are computed from the received
  // tokens. Nothing is routed, dispatched or combined.
  void recompute(const LayerContext& layer, ConstView x, Saved& s) const;
  // Overwrites dx, and adds the gradients of the parameters to those of the store.
  // Shapes: dy [T, D], gradient with respect to the output; dx [T, D], with respect to x. They must
  // not overlap.
  void backward(const LayerContext& layer, ConstView dy, Saved& s, View dx);

 private:
  // Builds the permutation of the received tokens, at most n rows: the tables and `row_weights` of
  // s. physical_experts, weights: [A, k].
  void build_permutation(const LayerContext& layer, ConstView physical_experts, ConstView weights,
                         Index first_physical_expert, Index n, Saved& s) const;
  // Returns the shape of the inputs of the activation of R rows.
  Shape hidden_shape(Index rows) const { return {rows, (activation_.gated ? 2 : 1) * width_}; }
  // Computes s.h, and the weighted activations a: [R, F]. rows: [R, D] memory for the inputs.
  void compute_hidden(const ExecutionContext& context, const Saved& s, View rows, View a) const;
  // Whether the GEMMs of the experts read the received tokens through an index.
  bool uses_gathered_rows(const ExecutionContext& context) const;

  FfnActivation activation_;
  Index width_;  // F
  Router router_;
  // If etp > 1, F is the width of this rank's shard of an expert.
  AdaptedWeight gate_up_, down_;    // [E / ep, num_projections * F, D], [E / ep, D, F]
  Param gate_up_bias_, down_bias_;  // [E / ep, num_projections * F], [E / ep, D / etp]; or empty
  Index down_bias_column_ = 0;      // first of the D outputs that down_bias_ covers
  std::optional<Mlp> shared_;
};

}  // namespace sy
