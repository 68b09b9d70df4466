// Attention, and the cache of keys and values. Source: Vaswani et al., "Attention Is All You
// Need", 2017.
//
//   score = scale q . k, capped, + bias      weight = exp(score - lse)      out = sum of weight v
//
// The sum is over the keys that the mask shows a query. `lse` is the log of the sum of exponentials
// of a query's scores, to which a sink adds one more. Query head h reads kv head h / (H / K).
// kernels/attention.h describes the operands.
#pragma once

#include "kernels/attention.h"
#include "kernels/ops/operation.h"

namespace sy::ops {

struct AttentionForward {
  static constexpr std::string_view name = "attention_forward";
  ConstHeads q;  // [B, Sq, H, hd] c
  ConstHeads k;  // [B, Sk, K, hd] c
  ConstHeads v;  // [B, Sk, K, vd] c
  AttentionDesc desc;
  View out;  // [B, Sq, H, vd] c
  View lse;  // [B, H, Sq]
  // [B, H, Sq] largest score of each query, a sink included; empty, or without mask.query_offsets
  View largest = {};
  Cost cost() const;
};
void run(Device& device, const AttentionForward& op);

// Gradients with respect to q, k and v, which share no element. The gradient of a key that no query
// sees is 0.
struct AttentionBackward {
  static constexpr std::string_view name = "attention_backward";
  ConstView dout;      // [B, Sq, H, vd] c
  ConstHeads q;        // [B, Sq, H, hd] c
  ConstHeads k;        // [B, Sk, K, hd] c
  ConstHeads v;        // [B, Sk, K, vd] c
  ConstView out;       // [B, Sq, H, vd] c of AttentionForward
  ConstView lse;       // [B, H, Sq] of AttentionForward
  AttentionDesc desc;  // without mask.query_offsets
  Heads dq;            // [B, Sq, H, hd] c
  Heads dk;            // [B, Sk, K, hd] c
  Heads dv;            // [B, Sk, K, vd] c
  bool is_empty() const { return k.elements() == 0; }
  Cost cost() const;
};

// Gradients with respect to the parameters of attention, desc.bias and desc.sinks.
struct AttentionBackwardLearned {
  static constexpr std::string_view name = "attention_backward_learned";
  ConstView dout;  // [B, Sq, H, vd] c
  ConstHeads q;    // [B, Sq, H, hd] c
  ConstHeads k;    // [B, Sk, K, hd] c
  ConstHeads v;    // [B, Sk, K, vd] c
  ConstView out;   // [B, Sq, H, vd] c of AttentionForward
  ConstView lse;   // [B, H, Sq] of AttentionForward
  AttentionDesc desc;
  View dbias = {};   // [H, n] +=; may be empty
  View dsinks = {};  // [H] +=; may be empty
  bool is_empty() const { return out.elements() == 0; }
  Cost cost() const;
};

// y[b, offsets[b] + i] = x[b, i]. The rest of y keeps its values. x and y share no element.
struct KvCacheAppend {
  static constexpr std::string_view name = "kv_cache_append";
  ConstHeads x;       // [B, S, N, w] c
  ConstView offsets;  // [B] i32, with offsets[b] + S <= C
  Heads y;            // [B, C, N, w] c
  bool is_empty() const { return x.elements() == 0; }
  // It writes as much of y as it reads of x.
  Cost cost() const { return Cost().reads(x, offsets).writes(x); }
};

}  // namespace sy::ops
