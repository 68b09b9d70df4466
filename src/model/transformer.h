// The decoder: embedding, blocks, norm, output.
#pragma once

#include <functional>
#include <vector>

#include "src/model/block.h"
#include "src/model/embedding.h"
#include "src/model/head.h"

namespace sy {

class Transformer {
 public:
  // router_bias: [MoE layers, E], or none.
  Transformer(const Config& config, const ParamStore& store, View router_bias);

  // Called with a layer when the gradients of its parameters are complete: the last to the first.
  using LayerDone = std::function<void(Index layer)>;

  // ids, targets: [B * S] i32 on the device; a target of -1 carries no loss. What was found is added to ctx.statistics.
  // Forward and backward: adds to the parameters' gradients those of this rank's part of the step's loss.
  void train(const Context& ctx, ConstView ids, ConstView targets, const LayerDone& layer_done) const;
  // Forward alone.
  void evaluate(const Context& ctx, ConstView ids, ConstView targets) const;
  // logits: [V] after the last of S tokens; B = 1, tp = 1.
  void next_logits(const Context& ctx, ConstView ids, View logits) const;

  // The numbers of the layers that are MoE layers.
  const std::vector<std::int64_t>& moe_layer_ids() const { return moe_layer_ids_; }
  Index moe_layers() const { return static_cast<Index>(moe_layer_ids_.size()); }

 private:
  struct Saved;
  // Returns the last block's output, [T, D].
  View forward(const Context& ctx, ConstView ids, Saved& s) const;

  Index d_model_;
  bool recompute_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  std::vector<std::int64_t> moe_layer_ids_;
  Norm final_norm_;
  Head head_;
};

// [positions, rotated / 2, 2] cos and sin of position * theta^(-2i / rotated), in double precision.
std::vector<float> rope_table(const RopeSpec& rope, Index positions);

}  // namespace sy
