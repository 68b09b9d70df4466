// Attention of the global tokens of a Longformer encoder by projections of their own (Beltagy et
// al., "Longformer", 2020, section 3.1; LED). The first G tokens of a sequence attend to all:
//   out = softmax(scale q K^T) V
// Queries q are of global tokens, and keys K and values V of all tokens. The result replaces the
// output of local attention for these tokens. The others see the global tokens by their local keys
// and values.
#pragma once

#include "src/model/core_attention.h"
#include "src/model/linear.h"

namespace sy {

class GlobalAttention {
 public:
  // G: number of global tokens of a sequence. Hl, Kl: numbers of heads of this rank.
  struct Saved {
    View q;    // [B, G, Hl, hd]
    View kv;   // [B, S, 2 Kl, hd]
    View out;  // [B, G, Hl, hd]
    View lse;  // [B, Hl, G]
  };
  // Gradients with respect to Saved::q and Saved::kv.
  struct Gradients {
    View dq, dkv;
  };

  // - prefix: of its parameters' names, for example "layers.3.attention.global."
  // - positions: maximum number of tokens in a sequence
  GlobalAttention(const AttentionSpec& spec, ParamStore& store, const std::string& prefix, Index positions);

  // Overwrites the global tokens of out: [B, S, Hl, hd]. x: [B * S, D]
  void forward(const LayerContext& layer, ConstView x, View out, Saved& s) const;
  // Adds the gradients of its parameters. dout: [B, S, Hl, hd] gradient with respect to `out`. It
  // becomes 0 for global tokens, as nothing reads the output of their local attention.
  // The result is in scratch memory of the caller.
  Gradients backward(const LayerContext& layer, ConstView x, View dout, const Saved& s);
  // Adds this rank's gradient with respect to x. dx: [B * S, D]
  void add_input_gradient(const LayerContext& layer, const Gradients& gradients, View dx) const;

 private:
  Index tokens(const LayerContext& layer) const { return std::min(global_tokens_, layer.stream.seq_len); }
  // Calls f(rows of all tokens, rows of global tokens) for the global tokens of each sequence. The
  // first dimension of `all` is B * S, that of `global` is B * G.
  template <class All, class Global, class F>
  void for_global_rows(const LayerContext& layer, All all, Global global, const F& f) const;
  // Copies the global tokens of x: [B * S, D] to scratch memory: [B * G, D].
  ConstView global_rows(const LayerContext& layer, ConstView x) const;

  Index global_tokens_, heads_, kv_heads_, head_dim_;  // G, Hl, Kl, hd
  CoreAttention core_attention_;
  Linear q_, kv_;
};

}  // namespace sy
