// One block of the decoder: attention, then the FFN, dense or a MoE by layer, each a branch that is added to the residual
// stream.
#pragma once

#include <optional>

#include "src/model/attention.h"
#include "src/model/latent_attention.h"
#include "src/model/mlp.h"
#include "src/model/moe.h"
#include "src/model/norm.h"

namespace sy {

// One sublayer f between its norms, which are there or not as NormPlaces says:
//   y = stream + output norm(f(input norm(x))), and then, for NormPlaces::sum, y = norm(y).
class Branch {
 public:
  struct Saved {
    ConstView x, in;            // [T, D] the branch's input, and that of f
    View out, sum;              // [T, D] what the output norm and the norm of the sum read, where there are such
    View moments, out_moments;  // [T, 2] of the norm of the input or of the sum, and of the output norm
  };

  // norm, out_norm: the names of its norms' parameters, "layers.3.attention_norm" and "layers.3.attention_out_norm".
  Branch(const BlockSpec& spec, ParamStore& store, const std::string& norm, const std::string& out_norm)
      : places_(spec.norms), norm_(spec.norm.desc(), store, norm), out_norm_(spec.norm.desc(), store, out_norm) {}

  // f(in, Output) computes the sublayer. x, stream, y: [T, D]; stream may be x, and y may be stream. same_input: of a branch that
  // has the same x and input norm, where there is one.
  template <class F>
  void forward(const Pass& pass, ConstView x, ConstView stream, View y, Saved& s, const F& f,
               const Saved* same_input = nullptr) const;
  // f(dy, din) is the sublayer's backward: din = the gradient through it of dy. d: [T, D] the gradient by y becomes that by the
  // stream. dx: [T, D] += the gradient by x through the branch; it may be d.
  template <class F>
  void backward(const Pass& pass, View d, const Saved& s, View dx, const F& f) const;

 private:
  NormPlaces places_;
  Norm norm_, out_norm_;
};

class Block {
 public:
  struct Saved {
    Branch::Saved attention_branch, ffn_branch;
    Attention::Saved attention;  // one of the two
    LatentAttention::Saved latent_attention;
    Mlp::Saved mlp;
    Moe::Saved moe;
  };

  // router: of a MoE layer. rope_table: the layer's, or nullptr. positions: those that a sequence
  // may have.
  Block(const BlockSpec& spec, Index d_model, Index layer, ParamStore& store, RouterTables router,
        const RopeTable* rope_table, Index positions);

  // x: [T, D] -> y: [T, D], the next block's input. observer: of a MoE layer's router, or none.
  void forward(const Pass& pass, View x, View y, Saved& s, const RoutingObserver* observer) const;
  // d: [T, D], the gradient by the block's output, becomes that by its input.
  void backward(const Pass& pass, View d, Saved& s) const;

  bool is_moe() const { return moe_.has_value(); }
  CacheSpec cache_spec() const { return attention_ ? attention_->cache_spec() : latent_attention_->cache_spec(); }

 private:
  Index layer_;
  bool parallel_, shared_norm_;
  Branch attention_branch_, ffn_branch_;
  std::optional<Attention> attention_;  // one of the two
  std::optional<LatentAttention> latent_attention_;
  std::optional<Mlp> mlp_;  // one of the two
  std::optional<Moe> moe_;
};

}  // namespace sy
