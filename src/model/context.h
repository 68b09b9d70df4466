// What every layer of the decoder is given to run with.
//
// Tokens. The ranks of one tensor-parallel group work on the same B sequences of S positions. Outside attention and dense
// FFNs each of them holds its own run of T = B * S / tp consecutive tokens (sequence parallelism), so that a token is
// routed once. Inside, all hold the full B * S tokens and a part of the heads or of the FFN's width. gather_tokens and
// scatter_tokens lead from one to the other; with tp = 1 they are the identity.
#pragma once

#include <functional>
#include <vector>

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "kernels/backend.h"

namespace sy {

// What the routers of one MoE layer did, summed over this rank's tokens since reset().
struct RouterStats {
  std::vector<Index> routed, dropped;  // [E] assignments before dropping; those dropped
  std::vector<double> probability;     // [E] sum over tokens of the softmax score
  double aux_loss = 0, z_loss = 0;     // this rank's part of the sums that the layer adds to the training loss
  void reset(Index experts) {
    routed.assign(experts, 0);
    dropped.assign(experts, 0);
    probability.assign(experts, 0.0);
    aux_loss = z_loss = 0;
  }
};

// What a router decided for this rank's tokens, shown to an observer: analyses and tests that look at single tokens.
struct RoutingView {
  ConstView logits, experts, weights, keep;  // [T, E], [T, k] i32, [T, k], [T, k] i32 (1 kept, 0 dropped)
};
using RoutingObserver = std::function<void(const RoutingView&)>;

struct Context {
  Backend& backend;
  Arena& saved;    // from a layer's forward to its backward
  Arena& scratch;  // within one function
  const Mesh& mesh;
  Index sequences;  // B
  Index seq_len;    // S
  // The batch that one optimizer step averages over.
  Index global_tokens;  // tokens with a target
  Index global_sequences;
  Index micro_batches;                        // that one rank computes in a step
  bool dropless = false;                      // ignore the capacity factor: evaluation and generation
  ConstView positions;                        // [B * S] i32
  ConstView rope_table;                       // [S, rot / 2, 2]
  const RoutingObserver* observer = nullptr;  // called by each MoE layer in order, where given

  Index full_tokens() const { return sequences * seq_len; }
  Index tokens() const { return full_tokens() / mesh.layout.tp; }  // T
  // This rank's run of a tensor of all B * S tokens.
  template <class V>
  V own_tokens(V full) const {
    return full.rows(mesh.coord.tp * tokens(), tokens());
  }
};

// x: [T, ...] -> [B * S, ...]: x itself when tp = 1, otherwise taken from `arena`.
ConstView gather_tokens(const Context& ctx, Arena& arena, ConstView x);
// y: [T, D] += the sum over tensor-parallel ranks of partial: [B * S, D], own tokens.
void scatter_tokens(const Context& ctx, ConstView partial, View y);

}  // namespace sy
