// Reversible residual layers (Gomez et al., "The Reversible Residual Network", 2017, section 3.1;
// Kitaev et al., "Reformer", 2020, section 3). A token has two residual streams:
//
//   y1 = x1 + F(x2),  y2 = x2 + G(y1),  hence  x2 = y2 - G(y1),  x1 = y1 - F(x2)
//
// F is the attention of a layer with its norms, and G is its FFN with its norms. Both streams begin
// as the input. The output is their mean, or both, one after the other. Backward computes the
// inputs of each layer from its outputs, so the saved activations do not grow with the number of
// layers.
#pragma once

#include <functional>
#include <vector>

#include "src/model/block.h"

namespace sy {

// The two residual streams of a token, or the gradients with respect to them.
struct Streams {
  View first, second;  // [T, D]
};

// One reversible layer. Both passes overwrite the streams.
class ReversibleBlock {
 public:
  // State of the two branches. Its views are valid within one call; no memory is saved.
  struct Saved {
    ResidualBranch::Saved f, g;
  };

  // spec: two groups of one branch each
  ReversibleBlock(const BlockSpec& spec, Index layer, const SublayerContext& context);

  // In: inputs x of the layer. Out: outputs y.
  void forward(const LayerContext& layer, const Streams& x, Saved& s) const;
  // - y: In: outputs of the layer. Out: inputs, within rounding.
  // - d: In: gradients with respect to the outputs. Out: gradients with respect to the inputs.
  // - layer.decisions: of forward, with `replay`
  void backward(const LayerContext& layer, const Streams& y, const Streams& d, Saved& s);

  // Appends the cache entries of the sublayers, in order.
  void append_cache_specs(std::vector<CacheSpec>& specs) const;

 private:
  Index layer_;
  ResidualBranch f_, g_;
};

// The reversible layers of a stage.
class ReversibleStack {
 public:
  // State of one micro-batch that forward saves for backward.
  struct Saved {
    Streams streams;               // of the last layer
    RoutingDecisions decisions;    // of all routers of the stack
    std::vector<View> lsh_orders;  // LayerContext::lsh_orders
    std::vector<ReversibleBlock::Saved> blocks;
  };
  // Called with the index of a layer: before its forward, or after its backward.
  using LayerHook = std::function<void(std::size_t)>;

  // Appends a layer. Arguments: as of ReversibleBlock.
  void add(const BlockSpec& spec, Index layer, const SublayerContext& context);

  explicit ReversibleStack(ReversibleOutput output) : output_(output) {}

  // Returns the mean of both streams after the last layer: [T, D] in layer.saved. With
  // ReversibleOutput::concat, it returns both: [T, 2 D].
  // x: [T, D]; it is overwritten, and must stay valid until backward.
  View forward(LayerContext layer, View x, Saved& s, const LayerHook& before_layer) const;
  // d: In: gradient with respect to the output, in its shape. Returns the gradient with respect to
  // the input, [T, D] in the memory of d.
  View backward(LayerContext layer, View d, Saved& s, const LayerHook& after_layer);

  void append_cache_specs(std::vector<CacheSpec>& specs) const {
    for (const ReversibleBlock& block : blocks_) block.append_cache_specs(specs);
  }

 private:
  std::vector<ReversibleBlock> blocks_;
  std::vector<LshAttentionSpec> hashed_;  // of the layers that sort tokens by a hash
  Index routers_ = 0, top_k_ = 0;
  ReversibleOutput output_;
};

}  // namespace sy
