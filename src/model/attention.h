// Grouped-query causal attention, with rotary positions and QK-norm.
#pragma once

#include <optional>

#include "src/model/linear.h"
#include "src/model/rope.h"
#include "src/model/scores.h"

namespace sy {

class Attention {
 public:
  // Hl, Kl: the query and kv heads that this rank holds.
  struct Saved {
    ConstView x;   // [B * S, D] the gathered input
    View raw;      // [B, S, Hl + 2 Kl, hd] before QK-norm, where there is one
    View inverse;  // [B * S, Hl + Kl] of QK-norm by head
    View squares;  // [B * S, 2] of QK-norm over all heads: the sums of squares of queries and of keys
    View qkv;      // [B, S, Hl + 2 Kl, hd] after rotation
    View out;      // [B, S, Hl, hd]
    View lse;      // [B, Hl, S]
  };

  // prefix: of its parameters' names, "layers.3.attention.". rope_table: of RopeTables; nullptr if
  // it does not rotate. positions: those that a sequence may have.
  Attention(const AttentionSpec& spec, Index d_model, ParamStore& store, const std::string& prefix,
            const RopeTable* rope_table, Index positions);

  // What it keeps of a token in generation.
  CacheSpec cache_spec() const { return {kv_heads_, head_dim_, head_dim_, scores_.window()}; }

  // to: [T, D] attention(x: [T, D])
  void forward(const Pass& pass, ConstView x, Output to, Saved& s) const;
  // dx: [T, D] = the gradient through the attention of dy: [T, D]
  void backward(const Pass& pass, ConstView dy, const Saved& s, View dx) const;

 private:
  // raw to qkv: QK-norm and rotation.
  void normalize(const Pass& pass, Saved& s) const;
  // dqkv: [B, S, Hl + 2 Kl, hd], the gradient by qkv, becomes that by what the projection made. Returns it as rows: dqkv's, or
  // such that are taken from scratch.
  View backward_normalize(const Pass& pass, View dqkv, const Saved& s) const;
  // The sums over all ranks' heads of a * b: [B * S, 2]
  void whole_sums(const Device& device, ConstView a, ConstView b, View sums) const;

  // The query, key and value heads of a tensor of all three: [B, S, Hl + 2 Kl, hd].
  template <class V>
  auto queries(V qkv) const {
    return heads_of(qkv, 0, heads_);
  }
  template <class V>
  auto keys(V qkv) const {
    return heads_of(qkv, heads_, kv_heads_);
  }
  template <class V>
  auto values(V qkv) const {
    return heads_of(qkv, heads_ + kv_heads_, kv_heads_);
  }

  ConstView rope_rows() const { return rope_table_ ? ConstView(rope_table_->rows) : ConstView(); }

  const RopeTable* rope_table_;
  RopePairs pairs_ = RopePairs::half;
  Index heads_, kv_heads_, head_dim_;  // local
  Scores scores_;
  QkNorm qk_norm_;
  WholeQkNorm whole_qk_norm_;
  Param norm_,
      whole_norm_;  // [2, hd] of queries and keys or [Hl + Kl, hd] of each head, [(Hl + Kl) hd] of all, or none
  std::optional<Linear> qkv_, out_;
};

}  // namespace sy
