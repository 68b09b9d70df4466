// Encoder of an encoder-decoder: its embedding, the first stack of blocks, and its final norm. All
// stacks share the table of the embedding.
#pragma once

#include <optional>
#include <vector>

#include "src/model/block.h"
#include "src/model/embedding.h"
#include "src/model/load_balancing.h"
#include "src/model/rope.h"

namespace sy {

class Encoder {
 public:
  // State of one micro-batch that forward saves for backward.
  struct Saved {
    Embedding::Saved embedding;
    std::vector<Block::Saved> blocks;
    LoadBalanceState load_balance;  // of its routers
    View last, normed;              // [T, D] input and output of the final norm
    View moments;                   // of the final norm (Norm::make_moments)
  };

  // - config: of the encoder-decoder
  // - routers: tables of the encoder's routers, [routers, E]
  // - store, rope: must outlive the encoder
  Encoder(const Config& config, ParamStore& store, RouterTables routers, const RopeTables& rope);

  // Returns the outputs for the rank's own tokens, [T, D]. layer: LayerContext::of_encoder()
  View forward(LayerContext layer, Saved& s) const;
  // Adds the gradients of the parameters to the store. d: [T, D] gradient with respect to the
  // outputs. Calls hooks.on_gradients_ready for the layers, not for the embedding.
  void backward(LayerContext layer, Saved& s, ConstView d, const BackwardHooks& hooks);
  // Computes the losses of the encoder's routers, after forward and before backward.
  // sums: their rows of StatisticsSink::layers, or empty
  void load_balancing(const LayerContext& layer, const Saved& s, View sums) const {
    if (moe_) load_balancing_loss(layer, moe_->router, s.load_balance, sums);
  }

  // Returns the layer of each router.
  const std::vector<std::int64_t>& moe_layer_ids() const { return moe_layer_ids_; }
  Index moe_layers() const { return std::ssize(moe_layer_ids_); }

 private:
  ParamStore& store_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  std::vector<std::int64_t> moe_layer_ids_;
  std::optional<MoeSpec> moe_;
  Norm final_norm_;
};

}  // namespace sy
