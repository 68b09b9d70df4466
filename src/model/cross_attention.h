// Attention of a decoder's tokens to the outputs of an encoder (LayerContext::encoder).
#pragma once

#include "src/model/core_attention.h"
#include "src/model/linear.h"
#include "src/model/sublayer.h"

namespace sy {

class CrossAttention {
 public:
  static constexpr const char* trace_name = "attention";

  // Hl, Kl: numbers of query and kv heads of this rank. Se: number of positions of the encoder.
  struct Saved {
    ConstView x;        // [B * S, D] the gathered input
    ConstView encoded;  // [B * Se, D] the gathered outputs of the encoder; empty without one
    View q;             // [B, S, Hl, hd]
    View kv;            // [B, Se, 2 Kl, hd]; empty without an encoder
    View out;           // [B, S, Hl, hd]
    View lse;           // [B, Hl, S]
  };

  CrossAttention(const CrossAttentionSpec& spec, const SublayerContext& context, const std::string& prefix);

  // Cache entry of a token of the encoder.
  CacheSpec cache_spec() const {
    return {.heads = kv_heads_, .key_width = head_dim_, .value_width = head_dim_, .window = 0, .of_encoder = true};
  }

  // See Sublayer. In generation, a pass with an encoder writes the keys and values of its outputs
  // to the cache. A pass without one reads them from there.
  const Linear& out() const { return out_; }
  void attend(const LayerContext& layer, ConstView x, Saved& s) const;
  void recompute(const LayerContext& layer, ConstView x, Saved& s) const;
  // dx: [T, D] = gradient with respect to x; dy: [T, D], with respect to the output. Adds the
  // gradient with respect to the encoder's outputs to TokenStream::doutput of the encoder.
  void backward(const LayerContext& layer, ConstView dy, const Saved& s, View dx);

 private:
  Index cache_index_;
  Index heads_, kv_heads_, head_dim_;  // Hl, Kl, hd
  CoreAttention core_attention_;
  Linear q_, kv_, out_;
};

}  // namespace sy
