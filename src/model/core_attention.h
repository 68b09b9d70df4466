// Core attention of a layer's heads: softmax(Q K^T) V with scale, mask, soft cap, bias and sinks.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "src/model/relative_bias.h"
#include "src/params/block_specs.h"

namespace sy {

// Returns consecutive groups of the heads of x: [B, S, sum of the counts, width].
template <class Byte, class... Counts>
std::array<BasicHeads<Byte>, sizeof...(Counts)> split_heads(BasicView<Byte> x, Counts... counts) {
  Index first = 0;
  return {heads_of(x, std::exchange(first, first + counts), counts)...};
}

// Returns the operands of the mask of attention within a stream. Documents hide the padding.
// - selected: AttentionMask::selected
// - query_offsets: AttentionMask::query_offsets, if keys and values are a cache
inline AttentionMask stream_mask(const TokenStream& stream, ConstView selected, ConstView query_offsets = {}) {
  return {.document_start = stream.document_start,
          .query_offsets = query_offsets,
          .key_lengths = stream.document_start ? ConstView{} : stream.lengths,
          .selected = selected,
          .prefix_end = stream.prefix_end};
}

class CoreAttention {
 public:
  // For the Hl heads whose rows of q.weight this rank holds.
  // - prefix: of its parameters' names, for example "layers.3.attention."
  // - positions: maximum number of tokens in a sequence
  CoreAttention(const CoreAttentionSpec& spec, ParamStore& store, const std::string& prefix, Index positions);

  Index window() const { return desc_.mask.window; }
  // Returns the scores and the mask, with the learned bias and sinks in scratch memory.
  // by_sequence: operands of the mask for each sequence. Its other members are those of the spec.
  // `key_lengths` is ignored if attention is causal.
  AttentionDesc attention_desc(const ExecutionContext& context, const AttentionMask& by_sequence) const;

  // Computes attention.
  // - q: heads of [B, S, Hl, w], k: [B, Sk, K, w], v: [B, Sk, K, vw]
  // - out: [B, S, Hl, vw], lse: [B, Hl, S]
  // - max_logits: LayerContext::max_logits
  void forward(const ExecutionContext& context, ConstHeads q, ConstHeads k, ConstHeads v, View out, View lse,
               const AttentionMask& by_sequence, View max_logits = {}) const;
  // dq, dk, dv: shapes of q, k, v. Also adds the gradients of its own parameters.
  void backward(const ExecutionContext& context, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv, const AttentionMask& by_sequence) const;

 private:
  AttentionDesc desc_;
  Range logits_;  // of this rank's heads in StatisticsSink::max_logits (QkHeads)
  std::optional<RelativeBias> relative_;
  Param sinks_;  // [Hl], or empty
};

}  // namespace sy
