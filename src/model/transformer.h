// The decoder: embedding, blocks, norm, output.
#pragma once

#include <vector>

#include "src/model/block.h"
#include "src/model/head.h"

namespace sy {

// What a pass over one micro-batch found, on this rank.
struct PassResult {
  double loss_sum = 0;              // cross-entropy in nats, summed over this rank's own tokens
  double output_z_loss = 0;         // this rank's part of the training loss's output z-loss
  std::vector<float> token_losses;  // [T] of the own tokens, where asked for
};

class Transformer {
 public:
  // router_bias: [MoE layers, E], or none.
  Transformer(const Config& config, const ParamStore& store, const Mesh& mesh, View router_bias);

  // ids, targets: [B * S] i32 on the device; a target of -1 carries no loss. stats: one for each MoE layer.
  // Forward and backward: adds to the parameters' gradients those of this rank's part of the step's loss.
  PassResult train(const Context& ctx, ConstView ids, ConstView targets, std::vector<RouterStats>& stats) const;
  // Forward alone.
  PassResult evaluate(const Context& ctx, ConstView ids, ConstView targets, std::vector<RouterStats>& stats) const;
  // logits: [V] after the last of S tokens; B = 1, tp = 1.
  void next_logits(const Context& ctx, ConstView ids, View logits, std::vector<RouterStats>& stats) const;

  Index moe_layers() const { return static_cast<Index>(moe_layer_ids_.size()); }
  const std::vector<std::int64_t>& moe_layer_ids() const { return moe_layer_ids_; }

 private:
  struct Saved;
  // Returns the last block's output, [T, D].
  View forward(const Context& ctx, ConstView ids, Saved& s, std::vector<RouterStats>& stats) const;
  PassResult collect(const Context& ctx, ConstView losses, double output_z_loss) const;

  Config config_;
  Param embedding_;  // [V, D]
  Index embedding_first_;
  std::vector<Block> blocks_;
  std::vector<std::int64_t> moe_layer_ids_;
  Norm final_norm_;
  Head head_;
};

// [positions, rot / 2, 2] cos and sin of position * theta^(-2i / rot) (Su et al., "RoFormer", 2021), in double precision.
std::vector<float> rope_table(const Config& config, Index positions);

}  // namespace sy
