// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1). With x a token's input and norm RMSNorm:
//   c = norm(x Wkv_down^T)                        the latent that all heads' keys and values are made of
//   r = rotated(x Wk_rope^T)                      the part of a key that all heads share
//   k_h = [r | c Wk_h^T],  v_h = c Wv_h^T         key and value of head h
//   q_h = x' Wq_h^T, its first part rotated       x' is norm(x Wq_down^T), or x
// Training computes just that. Generation keeps r and c of each token and nothing else, and multiplies what is on the
// other side by the weights of keys and values instead, since q . (c Wk^T) = (q Wk) . c, and the sum of p (c Wv^T) is
// (the sum of p c) Wv^T: all heads then read one key [r | c], whose last columns are its value.
//
// Over tp the heads are split. A latent is whole on every rank, each of which computes those of its own tokens; what is
// gathered are latents, which are narrower than x.
#pragma once

#include <functional>
#include <optional>

#include "src/model/linear.h"
#include "src/model/norm.h"
#include "src/model/rope.h"
#include "src/model/scores.h"

namespace sy {

// A latent of each token: norm(x W^T).
class Latent {
 public:
  struct Saved {
    View low, moments;  // [T, w] what the norm reads, [T, 2]
    ConstView all;      // [B * S, w] the latents, gathered
  };
  // name: "layers.3.attention.kv", of kv_down.weight and kv_latent_norm.weight.
  Latent(ParamStore& store, const std::string& name, Index d_model, float eps);

  Index width() const { return width_; }
  // s.all = the latents of x: [T, D]
  void forward(const Pass& pass, ConstView x, Saved& s) const;
  // dx: [T, D] (+)= the gradient through the latents. by_latents(partial: [B * S, w]) computes that by them of this rank's heads.
  void backward(const Pass& pass, const std::function<void(View partial)>& by_latents, ConstView x, const Saved& s,
                View dx, bool accumulate) const;

 private:
  Index width_;
  Linear down_;
  Norm norm_;
};

class LatentAttention {
 public:
  // Hl: the heads that this rank holds; kw, vw: the widths of keys and values; r, c: of the shared part of keys and of the
  // latent that keys and values are made of.
  struct Saved {
    ConstView x;  // [T, D]
    Latent::Saved q_latent, kv_latent;
    ConstView queries_of;  // [B * S, ...] what queries are made of
    View q, k;             // [B, S, Hl, kw] after rotation
    View v, out, lse;      // [B, S, Hl, vw] twice, [B, Hl, S]
  };

  // As Attention's.
  LatentAttention(const AttentionSpec& spec, Index d_model, ParamStore& store, const std::string& prefix,
                  const RopeTable* rope_table, Index positions);

  // What it keeps of a token in generation: one key [r | c], which holds the value.
  CacheSpec cache_spec() const { return {1, rope_ + kv_latent_.width(), 0, scores_.window()}; }

  // to: [T, D] attention(x: [T, D])
  void forward(const Pass& pass, ConstView x, Output to, Saved& s) const;
  // dx: [T, D] = the gradient through the attention of dy: [T, D]
  void backward(const Pass& pass, ConstView dy, const Saved& s, View dx) const;

 private:
  // shared: [B, S, 1, r] the part of keys that all heads share. Both set s.out.
  void attend(const Pass& pass, ConstView shared, Saved& s) const;
  void attend_to_cache(const Pass& pass, ConstView shared, Saved& s) const;
  // Rotates the first part of the heads of x: [tokens, heads, width], or turns it back.
  void rotate(const Device& device, View x, ConstView rope_rows, bool inverse) const;

  const RopeTable* rope_table_;
  RopePairs pairs_ = RopePairs::half;
  Index heads_, rope_, own_, value_;  // Hl, r, kw - r, vw
  Scores scores_;
  std::optional<Latent> q_latent_;
  Latent kv_latent_;
  Linear q_, k_rope_, k_, v_, out_;
  ConstView k_up_, v_up_;  // [Hl, kw - r, c], [Hl, vw, c]: k_'s and v_'s weights
};

}  // namespace sy
