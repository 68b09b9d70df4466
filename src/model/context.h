// What every layer of the decoder is given to run with.
//
// Tokens. The ranks of one tensor-parallel group work on the same B sequences of S positions. Outside attention and dense
// FFNs each of them holds its own run of T = B * S / tp consecutive tokens (sequence parallelism), so that a token is
// routed once. Inside, all hold the full B * S tokens and a part of the heads or of the FFN's width. gather_tokens and
// scatter_tokens lead from one to the other; with tp = 1 there is nothing to gather or scatter.
#pragma once

#include <functional>
#include <vector>

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "kernels/backend.h"

namespace sy {

// What the routers of one MoE layer did, summed over this rank's tokens.
struct RouterStats {
  std::vector<Index> routed, dropped;  // [E] assignments before dropping; those dropped
  std::vector<double> probability;     // [E] sum over tokens of the softmax score
  double aux_loss = 0, z_loss = 0;     // this rank's part of the sums that the layer adds to the training loss
};

// What passes over the model found since it was last read, on this rank.
struct Statistics {
  std::vector<RouterStats> layers;          // of each MoE layer
  double loss_sum = 0, lse_square_sum = 0;  // over this rank's tokens with a target: cross-entropy in nats, logsumexp^2
};

// Where the passes add them up, on the backend, so that the host need not wait for any: [MoE layers, RouterSums of E]
// as Backend::balance writes it, and [2] as Backend::loss_sums. None: nobody asks.
struct StatisticsView {
  View layers, loss;
  View layer(Index i) const { return layers ? layers.rows(i, 1).reshape({layers.dim(1)}) : View{}; }
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
  DType dtype;      // of weights and activations: f32 or bf16
  Index sequences;  // B
  Index seq_len;    // S
  // The batch that one optimizer step averages over.
  Index global_tokens;  // tokens with a target
  Index global_sequences;
  Index micro_batches;    // that one rank computes in a step
  bool dropless = false;  // ignore the capacity factor: evaluation and generation
  ConstView positions;    // [B * S] i32
  ConstView rope_table;   // [S, rot / 2, 2]
  StatisticsView statistics;
  const RoutingObserver* observer = nullptr;  // called by each MoE layer in order, where given

  // Activations that live from forward to backward, or within one function.
  View keep(Shape shape) const { return saved.take(shape, dtype); }
  View temp(Shape shape) const { return scratch.take(shape, dtype); }

  Index full_tokens() const { return sequences * seq_len; }
  Index tokens() const { return full_tokens() / mesh.layout.tp; }  // T
  // This rank's run of a tensor of all B * S tokens.
  template <class V>
  V own_tokens(V full) const {
    return full.rows(mesh.coord.tp * tokens(), tokens());
  }
};

// Where a sublayer's result goes: added to the residual stream, or alone, for a norm behind the sublayer.
struct Output {
  View y;    // [T, D]
  bool add;  // y += the result; otherwise y = the result
};

// x: [T, ...] -> [B * S, ...]: x itself when tp = 1, otherwise taken from `arena`.
ConstView gather_tokens(const Context& ctx, Arena& arena, ConstView x);
// to: the sum over tensor-parallel ranks (more than one) of partial: [B * S, D], own tokens.
void scatter_tokens(const Context& ctx, ConstView partial, Output to);

}  // namespace sy
