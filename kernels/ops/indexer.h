// The lightning indexer of sparse attention (DeepSeek-AI, "DeepSeek-V3.2", 2025). It scores the
// keys that the mask shows a query, and the query attends to those of the largest scores alone:
//
//   score[t, j] = sum over the index heads h of weights[t, h] * relu(scale * q[t, h] . k[j])
//
// The indexer learns from attention. Let p[t] be the attention weights of query t, summed over all
// heads and divided by their sum. The loss of a query is KL(p[t] || softmax(score[t])).
#pragma once

#include "kernels/attention.h"
#include "kernels/ops/operation.h"

namespace sy {

// Operands of index scores, of T consecutive queries among the B * Sq of a batch.
struct IndexScores {
  ConstView q;              // [T, H, w] c
  ConstView weights;        // [T, H] c
  ConstView k;              // [B, Sk, w] c; all must be finite
  Index queries = 0;        // Sq, number of queries of a sequence
  Index first = 0;          // index of the first query among the B * Sq
  AttentionMask mask = {};  // causal; `sparse`, `key_lengths` and `selected` are empty
  float scale = 1;

  // Sizes of the queries and the keys, without data, as attention of one head has them.
  ConstHeads query_sizes() const { return sizes(queries); }
  ConstHeads key_sizes() const { return sizes(k.dim(1)); }

 private:
  ConstHeads sizes(Index positions) const {
    return {{.sequences = k.dim(0), .positions = positions, .heads = 1, .width = q.dim(2)}, nullptr};
  }
};

namespace ops {

// Selects the n keys of the largest scores of each query. If scores are equal, the later key comes
// first. NaN counts as minus infinity.
struct TopkKeys {
  static constexpr std::string_view name = "topk_keys";
  IndexScores scores;
  // [T, n] i32 positions of the keys, in ascending order; -1 after the last if a query sees fewer
  View selected;
  bool is_empty() const { return selected.elements() == 0; }
  Cost cost() const;
};

// Sums of attention weights over heads: exp(score - lse), with the scores of AttentionForward. The
// columns are the keys of desc.mask.selected, or all keys if it is empty. It is 0 for keys that a
// query does not see.
struct AttentionKeySums {
  static constexpr std::string_view name = "attention_key_sums";
  ConstHeads q;        // [B, Sq, H, hd] c
  ConstHeads k;        // [B, Sk, K, hd] c
  ConstView lse;       // [B, H, Sq] of AttentionForward
  AttentionDesc desc;  // without a bias, key_lengths and a sparse pattern
  View sums;           // [B * Sq, n]; n = Sk if desc.mask.selected is empty
  bool is_empty() const { return sums.elements() == 0; }
  Cost cost() const;
};

// The loss of the indexer, and its gradient with respect to the scores. The columns are those of
// AttentionKeySums. A query without attention weights has no loss.
struct IndexerLoss {
  static constexpr std::string_view name = "indexer_loss";
  IndexScores scores;
  ConstView selected;   // [T, n] i32 of TopkKeys, or empty: n = Sk
  ConstView attention;  // [T, n] of AttentionKeySums
  float factor = 1;     // of the gradient
  View dscores;         // [T, n] = factor * (softmax(score) - p), which may be `attention` itself
  View loss;            // [1] f64 += sum over the queries, without the factor
  bool is_empty() const { return dscores.elements() == 0; }
  Cost cost() const;
};

// Gradients with respect to q, weights and k through the scores.
struct IndexerBackward {
  static constexpr std::string_view name = "indexer_backward";
  IndexScores scores;
  ConstView selected;  // [T, n] i32 of TopkKeys, or empty: n = Sk
  ConstView dscores;   // [T, n] of IndexerLoss
  View dq;             // [T, H, w] c
  View dweights;       // [T, H] c
  View dk;             // [B, Sk, w] c, through the T queries alone
  bool is_empty() const { return dk.elements() == 0; }
  Cost cost() const;
};

}  // namespace ops

}  // namespace sy
