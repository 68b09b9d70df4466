// A block of the decoder: residual groups of one or more sublayers, each a residual branch.
#pragma once

#include <memory>
#include <vector>

#include "src/model/norm.h"
#include "src/model/sublayer.h"

namespace sy {

// A residual branch: sublayer f between optional norms, as NormPlacement says. c: BranchSpec::scale
//   y = stream + c * out norm(f(norm(x))); then, if NormPlacement::post_residual, y = norm(y)
//   y = norm(x) + c * f(norm(x)), if NormPlacement::normed_residual
class ResidualBranch {
 public:
  struct Saved {
    ConstView x, in;  // [T, D] input of the branch; input of f
    View out, sum;    // [T, D] inputs of output norm and norm of the sum, or empty
    // Norm::make_moments of the input norm or norm of the sum, and of the output norm.
    View moments, out_moments;
    std::unique_ptr<Sublayer::Saved> sublayer;
  };

  // layer: prefix of the layer's parameters: "layers.3."
  ResidualBranch(const NormSpec& norm, const BranchSpec& spec, const SublayerContext& context,
                 const std::string& layer);

  // Runs the branch.
  // - x, stream, y: [T, D]; stream may be x, and y may be stream.
  // - first: saved state of the group's first branch. If the norm is shared, it is not computed
  //   again.
  void forward(const LayerContext& layer, ConstView x, ConstView stream, View y, Saved& s, const Saved& first) const;
  // Runs the branch backward.
  // - d: [T, D]. In: gradient with respect to y. Out: gradient with respect to the stream.
  // - dx: [T, D] += gradient with respect to x through the branch; it may be d. It must be d if
  //   NormPlacement::normed_residual.
  void backward(const LayerContext& layer, View d, Saved& s, View dx);

  const Sublayer& sublayer() const { return *sublayer_; }

 private:
  // The norm before the sublayer: [T, D] and its moments [T, 2].
  void normalize(const LayerContext& layer, Saved& s) const;
  // The sublayer's forward and backward, traced.
  void run_sublayer(const LayerContext& layer, Output to, Saved& s) const;
  void run_sublayer_backward(const LayerContext& layer, ConstView dy, Saved& s, View din);

  NormPlacement placement_;
  float scale_;
  bool shared_norm_;
  Norm norm_, out_norm_;
  std::unique_ptr<Sublayer> sublayer_;
};

// One layer of the decoder: the residual groups of a BlockSpec, in order.
class Block {
 public:
  struct Saved {
    View x, y;                                    // [T, D] input and output of the block
    std::vector<ResidualBranch::Saved> branches;  // state of each branch, in order
  };

  Block(const BlockSpec& spec, Index layer, const SublayerContext& context);

  // x: [T, D] -> y: [T, D], the next block's input. Both must stay valid until backward.
  void forward(const LayerContext& layer, View x, View y, Saved& s) const;
  // d: [T, D]. In: gradient with respect to the output. Out: gradient with respect to the input.
  void backward(const LayerContext& layer, View d, Saved& s);

  // Appends the cache entries of the sublayers, in order.
  void append_cache_specs(std::vector<CacheSpec>& specs) const;

 private:
  using Group = std::vector<ResidualBranch>;  // branches that read the same stream

  void run_forward(const LayerContext& layer, Saved& s) const;

  Index layer_;
  std::vector<Group> groups_;
};

}  // namespace sy
