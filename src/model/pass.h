// A pass over the decoder in its parts: the device that computes it, the batch that it is of, and the memory that its
// forward leaves to its backward. A part of the model is given those that it needs.
//
// Tokens. The ranks of one tensor-parallel group work on the same B sequences of S positions. Outside attention and dense
// FFNs each of them holds its own run of T = B * S / tp consecutive tokens (sequence parallelism), so that a token is
// routed once. Inside, all hold the full B * S tokens and a part of the heads or of the FFN's width. gather_tokens and
// scatter_tokens lead from one to the other; with tp = 1 there is nothing to gather or scatter.
#pragma once

#include <functional>

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "src/model/cache.h"

namespace sy {

// What computes: the same for every pass.
struct Device {
  Backend& backend;
  const Mesh& mesh;
  Arena& scratch;  // memory within one function
  DType dtype;     // of weights and activations: f32 or bf16

  // An activation that lives within one function.
  View temp(Shape shape) const { return scratch.take(shape, dtype); }
  // This rank's run of a tensor of all B * S tokens.
  template <class V>
  V own_tokens(V full) const {
    const Index tokens = full.dim(0) / mesh.layout.tp;
    return full.rows(mesh.coord.tp * tokens, tokens);
  }
};

// What one optimizer step averages over: the global batch.
struct StepSize {
  ConstView targets;    // [1] f64 tokens with a target
  Index sequences;      // all of S tokens
  Index micro_batches;  // that one rank computes
};

// One micro-batch.
struct Batch {
  Index sequences, seq_len;  // B, S
  ConstView ids, targets;    // [B * S] i32; a target of -1 carries no loss
  ConstView positions;       // [B * S] i32
  ConstView rope_rows{};     // [B * S] i32 row in the rope tables of each token (RopeTables)
  StepSize step;
  bool dropless = false;  // ignore the capacity factor: evaluation and generation
  // What random choices are keyed by: the tokens' numbers in the run, [B * S] i64, and the run's seed. None, as in
  // evaluation and generation: nothing is drawn.
  ConstView token_numbers{};
  std::uint64_t seed = 0;
  bool generation = false;  // which has no loss
  // Of evaluation: the load-balance loss takes no part, and is not taken. Its ranks may have different numbers of sequences.
  bool evaluation = false;
  Index padding = 0;  // the last of its tokens are none: no expert gets them

  Index tokens() const { return sequences * seq_len; }
  Index step_tokens() const { return step.sequences * seq_len; }
};

// What L routers leave for their load-balance loss, and what they get of it when the last has routed (balance.h). Their parts lie
// side by side, from the first layer's forward to the first's backward.
struct Balance {
  View counts;        // [L, G, E] i32 assignments
  View probability;   // [L, G, E] sums over a segment's tokens
  View kept;          // [L, E] i32 assignments that were not dropped
  View z_squared;     // [L] f64 sum of squared logsumexps
  View dprobability;  // [L, G, E] the gradient by probability; of evaluation and generation never asked for

  Balance layer(Index l) const {
    return {counts.rows(l, 1), probability.rows(l, 1), kept.rows(l, 1), z_squared.rows(l, 1), dprobability.rows(l, 1)};
  }
};

// What the last backward pass of a step tells whoever reduces its gradients beside it.
struct BackwardProgress {
  // The gradients of a part's parameters (ParamSpec::part) are complete: the last part to the first.
  std::function<void(Index part)> part_done;
  // A layer's tokens are under way to their experts: what is started now does not hold them up.
  std::function<void()> tokens_sent;

  explicit operator bool() const { return static_cast<bool>(part_done); }
};

struct Pass {
  const Device& device;
  const Batch& batch;
  Arena& saved;           // memory from a layer's forward to its backward
  LayerCache cache = {};  // of generation: where the layer's keys and values are kept, and come from
  Balance balance = {};   // the layer's, of a MoE layer
  const std::function<void()>* tokens_sent = nullptr;  // of BackwardProgress, in such a pass

  // An activation that lives from forward to backward.
  View keep(Shape shape) const { return saved.take(shape, device.dtype); }
  Index own_tokens() const { return batch.tokens() / device.mesh.layout.tp; }  // T
};

// Where a sublayer's result goes: added to the residual stream, or alone, for a norm behind the sublayer. The product or the
// sum that is last in a sublayer reads the stream and writes what it becomes.
struct Output {
  View y;            // [T, D] = from + the result
  ConstView from{};  // [T, D], which may be y; or none
};

// x: [T, ...] -> [B * S, ...]: x itself when tp = 1, otherwise taken from `arena`.
ConstView gather_tokens(const Device& device, Arena& arena, ConstView x);
// y: [T, D] = the sum over tensor-parallel ranks of what compute(partial: [B * S, D]) writes, own tokens.
void sum_tokens(const Device& device, View y, const std::function<void(View partial)>& compute);
// to: the sum over tensor-parallel ranks (more than one) of partial: [B * S, D], own tokens.
void scatter_tokens(const Device& device, ConstView partial, Output to);

}  // namespace sy
