// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1). For the input x of a
// token, with RMSNorm as norm:
//   c = norm(x Wkv_down^T)                 the latent: all heads' keys and values are made of it
//   r = rotated(x Wk_rope^T)               the first elements of a key, shared by all heads
//   k_h = [r | c Wk_h^T],  v_h = c Wv_h^T  key and value of head h
//   q_h = x' Wq_h^T                        first elements rotated; x' is norm(x Wq_down^T), or x
// Training computes exactly that. Generation caches only r and c of each token. It multiplies
// queries and outputs by the weights of keys and values instead: q . (c Wk^T) = (q Wk) . c, and the
// sum of p (c Wv^T) is (the sum of p c) Wv^T. All heads then read one key [r | c], whose last
// columns are its value.
//
// Heads are split over tp. Each rank computes the whole latents of its own tokens. The latents are
// gathered, because they are narrower than x.
#pragma once

#include <functional>
#include <optional>

#include "src/model/core_attention.h"
#include "src/model/indexer.h"
#include "src/model/linear.h"
#include "src/model/norm.h"
#include "src/model/sublayer.h"

namespace sy {

// Latent (compressed vector) of each token: norm(x W^T).
class Latent {
 public:
  struct Saved {
    View compressed, moments;  // [T, w] input of the norm; [T, 2]
    ConstView gathered;        // [B * S, w] latents of all tokens
  };
  // name: for example "layers.3.attention.kv", for kv_down.weight and kv_latent_norm.weight.
  Latent(ParamStore& store, const std::string& name, float eps);

  Index width() const { return down_.outputs(); }
  // Computes s.gathered, the latents of x: [T, D].
  void forward(const LayerContext& layer, ConstView x, Saved& s) const;
  // Computes s.gathered from s.compressed.
  void normalize(const LayerContext& layer, Saved& s) const;
  // Computes dx: [T, D] = gradient with respect to x through the latents; dx += if `accumulate`.
  // The function latent_gradient(partial: [B * S, w]) computes the gradient with respect to the
  // latents, through this rank's heads.
  void backward(const LayerContext& layer, const std::function<void(View partial)>& latent_gradient, ConstView x,
                const Saved& s, View dx, bool accumulate);

 private:
  Linear down_;
  Norm norm_;
};

class LatentAttention {
 public:
  static constexpr const char* trace_name = "attention";

  // Letters of shapes:
  //   Hl      number of this rank's heads
  //   kw, vw  widths of keys and values
  //   c       width of the kv latent
  //   r       number of rotated elements of a key, which all heads share
  struct Saved {
    ConstView x;  // [T, D]
    Latent::Saved q_latent, kv_latent;
    ConstView query_input;  // [B * S, ...] input of the query projection
    View q, k;              // [B, S, Hl, kw] after rotation
    View v, out, lse;       // [B, S, Hl, vw] twice; [B, Hl, S]
    Indexer::Saved indexer;
  };

  LatentAttention(const LatentAttentionSpec& spec, const SublayerContext& context, const std::string& prefix);

  // Cache entry of a token in generation: one key [r | c], which contains the value.
  CacheSpec cache_spec() const {
    return {1, qk_rope_dim_ + kv_latent_.width(), 0, core_attention_.window(), false, index_width_};
  }

  // See Sublayer.
  const Linear& out() const { return out_; }
  void attend(const LayerContext& layer, ConstView x, Saved& s) const;
  void recompute(const LayerContext& layer, ConstView x, Saved& s) const;
  // dx: [T, D] = gradient with respect to x; dy: [T, D], with respect to the output
  void backward(const LayerContext& layer, ConstView dy, const Saved& s, View dx);

 private:
  // Sets s.query_input. x: [T, D]
  void set_query_input(const LayerContext& layer, ConstView x, Saved& s) const;
  // k_rope: [B, S, 1, r] rotated elements of the keys. Both functions set s.out.
  void attend_to_tokens(const LayerContext& layer, ConstView k_rope, Saved& s) const;
  void attend_to_cache(const LayerContext& layer, const LayerCache& cache, ConstView k_rope, Saved& s) const;
  // Rotates the first elements of the heads of x: [tokens, heads, width].
  // inverse: if true, rotates them back.
  void rotate(const ExecutionContext& context, View x, ConstView rope_rows, bool inverse) const {
    sy::rotate(context.device, rope_table_, x, x.dim(1), rope_rows, inverse);
  }

  Index cache_index_;
  const RopeTable* rope_table_;
  Index heads_, qk_rope_dim_, qk_nope_dim_, v_head_dim_;  // Hl, r, kw - r, vw
  Index index_width_;                                     // CacheSpec::index_width
  CoreAttention core_attention_;
  std::optional<Latent> q_latent_;
  Latent kv_latent_;
  Linear q_, k_rope_, k_, v_, out_;
  std::optional<Indexer> indexer_;
  ConstView k_up_, v_up_;  // [Hl, kw - r, c], [Hl, vw, c] weights of k_ and v_
};

}  // namespace sy
