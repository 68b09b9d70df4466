// A decoder block: attention, then the FFN, which is dense or MoE depending on the layer. Each is a
// residual branch.
#pragma once

#include <optional>

#include "src/model/attention.h"
#include "src/model/latent_attention.h"
#include "src/model/mlp.h"
#include "src/model/moe.h"
#include "src/model/norm.h"

namespace sy {

// A residual branch: sublayer f between optional norms, as NormPlacement says.
//   y = stream + out norm(f(norm(x))); then, if NormPlacement::post_residual, y = norm(y)
//   y = norm(x) + f(norm(x)), if NormPlacement::normed_residual
class ResidualBranch {
 public:
  struct Saved {
    ConstView x, in;            // [T, D] input of the branch; input of f
    View out, sum;              // [T, D] inputs of output norm and norm of the sum, or empty
    View moments, out_moments;  // [T, 2] of the input norm or norm of the sum; of the output norm
  };

  // norm, out_norm: names of the norm parameters, for example "layers.3.attention_norm" and
  // "layers.3.attention_out_norm".
  ResidualBranch(const BlockSpec& spec, ParamStore& store, const std::string& norm, const std::string& out_norm)
      : placement_(spec.norms), norm_(spec.norm.desc(), store, norm), out_norm_(spec.norm.desc(), store, out_norm) {}

  // Runs the branch. f(in, Output) computes the sublayer.
  // - x, stream, y: [T, D]; stream may be x, and y may be stream.
  // - same_input: saved state of a branch with the same x and input norm, which is not computed
  //   again; nullptr if there is no such branch.
  template <class F>
  void forward(const LayerContext& layer, ConstView x, ConstView stream, View y, Saved& s, const F& f,
               const Saved* same_input = nullptr) const;
  // Runs the branch backward. f(dy, din) is the sublayer's backward: dy, din are the gradients with
  // respect to its output and its input.
  // - d: [T, D]. In: gradient with respect to y. Out: gradient with respect to the stream.
  // - dx: [T, D] += gradient with respect to x through the branch; it may be d.
  template <class F>
  void backward(const LayerContext& layer, View d, const Saved& s, View dx, const F& f) const;

 private:
  NormPlacement placement_;
  Norm norm_, out_norm_;
};

class Block {
 public:
  struct Saved {
    ResidualBranch::Saved attention_branch, ffn_branch;
    Attention::Saved attention;  // exactly one of the two attentions is used
    LatentAttention::Saved latent_attention;
    Mlp::Saved mlp;
    Moe::Saved moe;
  };

  // - router: tables of the layer's router; empty if the layer is dense
  // - rope_table: table of the layer; nullptr without rotary positions
  // - positions: maximum number of tokens in a sequence
  Block(const BlockSpec& spec, Index d_model, Index layer, ParamStore& store, RouterTables router,
        const RopeTable* rope_table, Index positions);

  // x: [T, D] -> y: [T, D], the next block's input.
  // routing_hook: called by a MoE layer's router; may be nullptr.
  void forward(const LayerContext& layer, View x, View y, Saved& s, const RoutingHook* routing_hook) const;
  // d: [T, D]. In: gradient with respect to the output. Out: gradient with respect to the input.
  void backward(const LayerContext& layer, View d, Saved& s);

  bool is_moe() const { return moe_.has_value(); }
  CacheSpec cache_spec() const { return attention_ ? attention_->cache_spec() : latent_attention_->cache_spec(); }

 private:
  Index layer_;
  bool parallel_, shared_norm_;
  ResidualBranch attention_branch_, ffn_branch_;
  std::optional<Attention> attention_;  // exactly one of the two attentions
  std::optional<LatentAttention> latent_attention_;
  std::optional<Mlp> mlp_;  // exactly one of the two FFNs
  std::optional<Moe> moe_;
};

}  // namespace sy
