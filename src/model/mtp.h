// Multi-token prediction (DeepSeek-AI, "DeepSeek-V3", 2024, section 2.2). Module k predicts token
// i + k + 1 from the output h_i of module k - 1 and the embedding of token i + k:
//
//   h'_i = We norm(Emb(t_(i+k))) + Wh norm(h_i),  output = norm(block(h')),  logits = head(output)
//
// Module 1 reads the output of the decoder's final norm, and each later one that of the module
// before, as in transformers. Embedding and head are the decoder's. The paper's projection is
// [We | Wh].
#pragma once

#include "src/model/block.h"
#include "src/model/embedding.h"
#include "src/model/head.h"

namespace sy {

class MtpModule {
 public:
  struct Saved {
    Embedding::Saved embedding;
    ConstView hidden;                        // [T, D] output of the module before, not copied
    View embedded;                           // [T, D] embeddings of the tokens i + k
    View hidden_moments, embedding_moments;  // of the norms of both (Norm::make_moments)
    Block::Saved block;
    View output;   // [T, D] normalised output
    View moments;  // of its norm
  };

  // layer: of the block among those of block_specs()
  MtpModule(const Config& config, const BlockSpec& block, Index layer, const SublayerContext& context);

  // Returns the normalised output: [T, D]. hidden: [T, D]; it must stay valid until backward.
  // layer.batch has the ids and targets of the module (MicroBatchState::mtp_batches).
  View forward(const LayerContext& layer, const Embedding& embedding, ConstView hidden, Saved& s) const;
  // Computes the loss of the module, and adds all gradients to those of the parameters.
  // - d: [T, D]. In: gradient with respect to the output, through later modules. Out: with respect
  //   to `hidden`.
  // - sums: [2] f64 += as in Head::loss
  void backward(const LayerContext& layer, const Embedding& embedding, Head& head, Saved& s, View d, View sums);

 private:
  Norm hidden_norm_, embedding_norm_, head_norm_;
  Linear hidden_projection_, embedding_projection_;
  Block block_;
};

}  // namespace sy
