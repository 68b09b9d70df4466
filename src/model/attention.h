// Grouped-query attention, with rotary positions and QK-norm.
#pragma once

#include <optional>
#include <variant>

#include "kernels/ops/qk_norm.h"
#include "src/model/core_attention.h"
#include "src/model/global_attention.h"
#include "src/model/indexer.h"
#include "src/model/linear.h"
#include "src/model/sublayer.h"

namespace sy {

class Attention {
 public:
  static constexpr const char* trace_name = "attention";

  // Hl, Kl: numbers of query and kv heads of this rank.
  struct Saved {
    ConstView x;     // [B * S, D] the gathered input
    View raw;        // [B, S, Hl + 2 Kl, hd] before QK-norm; qkv itself if there is no QK-norm
    View inverse;    // [B * S, Hl + Kl] of HeadQkNorm
    View squares;    // [B * S, 2] of ProjectionQkNorm: sums of squares of queries and keys
    View unclipped;  // [B, S, Hl + 2 Kl, hd] before model.clip_qkv; qkv itself if it is 0
    View qkv;        // [B, S, Hl + 2 Kl, hd] after rotation
    View out;        // [B, S, Hl, hd]
    View lse;        // [B, Hl, S]
    Indexer::Saved indexer;
    GlobalAttention::Saved global;
  };

  Attention(const AttentionSpec& spec, const SublayerContext& context, const std::string& prefix);

  // Cache entry of a token in generation.
  CacheSpec cache_spec() const {
    return {kv_heads_, head_dim_, head_dim_, core_attention_.window(), false, index_width_};
  }

  // See Sublayer.
  const Linear& out() const { return out_; }
  void attend(const LayerContext& layer, ConstView x, Saved& s) const;
  void recompute(const LayerContext& layer, ConstView x, Saved& s) const;
  // dx: [T, D] = gradient with respect to x; dy: [T, D], with respect to the output
  void backward(const LayerContext& layer, ConstView dy, const Saved& s, View dx);

 private:
  // ranks: number of ranks that share the heads
  void set_qk_norm(const QkNormSpec& norm, const ParamStore& store, const std::string& prefix, Index ranks);
  // Computes s.qkv from s.raw: QK-norm, clip and rotation.
  void normalize(const LayerContext& layer, Saved& s) const;
  // Returns the gradient with respect to the projection's output (Saved::raw), in dqkv's shape.
  // dqkv: [B, S, Hl + 2 Kl, hd] gradient with respect to qkv. It is overwritten. The result is in
  // the memory of dqkv, or of scratch if there is a QK-norm or a clip.
  View backward_normalize(const LayerContext& layer, View dqkv, const Saved& s) const;
  // sums: [B * S, 2] = sums of a * b over the query heads and over the key heads of all ranks.
  void norm_sums(const ExecutionContext& context, const ProjectionQkNorm& norm, ConstView a, ConstView b,
                 View sums) const;

  // x: [T, Hl + 2 Kl, hd]. Rotates queries and keys, or their gradients if `inverse`. No-op without
  // a table.
  void rotate(const LayerContext& layer, View x, bool inverse) const {
    sy::rotate(layer.context.device, rope_table_, x, heads_ + kv_heads_, layer.stream.rope_rows, inverse);
  }
  ConstView rope_rows() const { return rope_table_ ? ConstView(rope_table_->rows) : ConstView(); }

  Index cache_index_;
  const RopeTable* rope_table_;
  Index heads_, kv_heads_, head_dim_;  // Hl, Kl, hd
  Index index_width_;                  // CacheSpec::index_width
  CoreAttention core_attention_;
  std::optional<FfnActivation> clip_;  // of queries, keys and values
  // QK-norm: none, or one of two.
  std::variant<std::monostate, HeadQkNorm, ProjectionQkNorm> norm_;
  bool norm_after_rope_ = false;  // of HeadQkNorm; Saved::raw is then rotated
  // Its weights: [2, hd] for queries and keys, or [Hl + Kl, hd] for each head. Of ProjectionQkNorm:
  // [(Hl + Kl) hd]. Empty without a norm.
  Param norm_weight_;
  Linear qkv_, out_;
  std::optional<Indexer> indexer_;
  std::optional<GlobalAttention> global_;
};

}  // namespace sy
