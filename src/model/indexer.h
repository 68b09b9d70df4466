// Lightning indexer of sparse attention (DeepSeek-AI, "DeepSeek-V3.2", 2025, section 2.1). With the
// input x of a token, LayerNorm as norm, H heads of width w, and RoPE of the first elements:
//   q_h = rotated(x' Wq_h^T)      index queries; x' is latent attention's latent of queries, or x
//   k   = rotated(norm(x Wk^T))   one index key, shared by all heads
//   score of a key = sum over h of (x Ww^T)_h relu(q_h . k) / sqrt(H w)
// A query attends to the topk keys of the largest scores. As in DeepSeek's models, RoPE rotates
// pairs (i, i + rot / 2), whatever pairs attention has. It has the angles of attention.
//
// The indexer learns from its own loss alone: the KL divergence from the distribution of attention
// over the keys that the query attends to (kernels/ops/indexer.h). No gradient flows to x, x' and
// attention.
//
// Each tensor-parallel rank computes the scores of its own tokens. Index keys and selections are
// gathered; attention weights and gradients of index keys are summed over the ranks.
#pragma once

#include <string>

#include "kernels/attention.h"
#include "kernels/ops/indexer.h"
#include "src/model/linear.h"
#include "src/model/norm.h"
#include "src/model/rope.h"

namespace sy {

class Indexer {
 public:
  // T: number of the rank's own tokens, n: topk
  struct Saved {
    View q, weights;          // [T, H, w] after rotation; [T, H]
    View key_input, moments;  // [T, w] input of the norm; [T, 2]
    ConstView keys;           // [B, S, w] index keys of all tokens
    ConstView selected;       // [B, S, n] i32 of ops::TopkKeys; empty: queries attend to all keys
  };

  // - prefix: of its parameters' names, for example "layers.3.attention.indexer."
  // - rope_table: of attention; nullptr without rotary positions
  Indexer(const IndexerSpec& spec, ParamStore& store, const std::string& prefix, const RopeTable* rope_table);

  // Sets s.selected. In training, it saves what backward needs, also if queries attend to all keys.
  // - x: [T, D], query_input: [T, ..] input of the index queries
  // - cache: of the layer, empty without a cache; gets the index keys if it is large enough that
  //   queries select
  void forward(const LayerContext& layer, ConstView x, ConstView query_input, const LayerCache& cache, Saved& s) const;
  // Adds the gradients of its parameters, and its loss to layer.indexer_loss.
  // - x, query_input: as in forward
  // - q, k, lse, desc: operands of attention, whose mask has s.selected
  void backward(const LayerContext& layer, ConstView x, ConstView query_input, ConstHeads q, ConstHeads k,
                ConstView lse, const AttentionDesc& desc, const Saved& s);

 private:
  // cache: of the layer, or empty
  IndexScores scores(const LayerContext& layer, const LayerCache& cache, const Saved& s) const;
  // Rotates heads of the rank's own tokens, x: [T, heads, w]. inverse: if true, rotates them back.
  void rotate(const LayerContext& layer, View x, bool inverse) const {
    const ConstView rows = layer.context.own_tokens(layer.stream.rope_rows);
    sy::rotate(layer.context.device, rope_table_, x, x.dim(1), rows, inverse, RopePairs::half);
  }

  IndexerSpec spec_;
  const RopeTable* rope_table_;
  Linear q_, k_, head_weights_;
  Norm k_norm_;
};

}  // namespace sy
