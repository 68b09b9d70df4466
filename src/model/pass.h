// Arguments of a pass through the decoder: device, micro-batch and saved memory. Each layer takes
// the ones that it needs.
//
// The ranks of a tensor-parallel group work on the same B sequences of S positions. Outside
// attention and dense FFNs, each rank holds its own T = B * S / tp consecutive tokens (sequence
// parallelism), so a token is routed once. Inside, each rank holds all B * S tokens, and a shard of
// the heads or of the FFN's width. gather_tokens and scatter_tokens convert between the two. With
// tp = 1 they copy nothing.
#pragma once

#include <functional>

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "src/model/cache.h"

namespace sy {

// Backend, mesh and scratch memory, the same for every pass.
struct Device {
  Backend& backend;
  const Mesh& mesh;
  Arena& scratch;  // memory that lives within one function
  DType dtype;     // of weights and activations: f32 or bf16

  // Allocates an activation that lives within one function.
  View temp(Shape shape) const { return scratch.take(shape, dtype); }
  // Returns this rank's own tokens of a tensor of all B * S tokens.
  template <class V>
  V own_tokens(V full) const {
    const Index tokens = full.dim(0) / mesh.layout.tp;
    return full.rows(mesh.coord.tp * tokens, tokens);
  }
};

// Size of the global batch, over which an optimizer step averages.
struct StepSize {
  ConstView targets;    // [1] f64 number of tokens with a target
  Index sequences;      // number of sequences, all of S tokens
  Index micro_batches;  // number of micro-batches of one rank
};

// One micro-batch.
struct Batch {
  Index sequences, seq_len;  // B, S
  ConstView ids, targets;    // [B * S] i32; a target of -1 has no loss
  ConstView positions;       // [B * S] i32
  ConstView rope_rows{};     // [B * S] i32 row in the rope tables of each token (RopeTables)
  StepSize step;
  bool dropless = false;  // true in evaluation and generation: no capacity limit
  // Keys of random choices: token numbers in the training run, [B * S] i64, and the run's seed.
  // Empty in evaluation and generation, where nothing is drawn.
  ConstView token_numbers{};
  std::uint64_t seed = 0;
  bool generation = false;  // true: there is no loss
  // If true, this is an evaluation pass: the load-balancing loss is not computed. Its ranks may
  // have different numbers of sequences.
  bool evaluation = false;
  Index padding = 0;  // number of padding tokens at the end; experts do not receive them

  Index tokens() const { return sequences * seq_len; }
  Index step_tokens() const { return step.sequences * seq_len; }
};

// State of the load-balancing loss of L routers (balance.h): sums and gradients. The layers' rows
// are adjacent. It lives from the first layer's forward to the first layer's backward.
struct Balance {
  View counts;        // [L, G, E] i32 assignments
  View probability;   // [L, G, E] sums over a segment's tokens
  View kept;          // [L, E] i32 assignments that are not dropped
  View z_squared;     // [L] f64 sum of squared logsumexps
  View dprobability;  // [L, G, E] gradient with respect to probability; unused without backward

  Balance layer(Index l) const {
    return {counts.rows(l, 1), probability.rows(l, 1), kept.rows(l, 1), z_squared.rows(l, 1), dprobability.rows(l, 1)};
  }
};

// Hooks of the last backward pass of a step, for overlapping gradient reduction.
struct BackwardProgress {
  // Called when the gradients of a bucket (ParamSpec::part) are complete, in descending order of
  // buckets.
  std::function<void(Index part)> part_done;
  // Called when a layer's dispatch is in flight. Collectives started now do not delay it.
  std::function<void()> tokens_sent;

  explicit operator bool() const { return static_cast<bool>(part_done); }
};

struct Pass {
  const Device& device;
  const Batch& batch;
  Arena& saved;           // memory that lives from a layer's forward to its backward
  LayerCache cache = {};  // key-value cache of the layer in generation, else empty
  Balance balance = {};   // of the layer, if it is a MoE layer
  // BackwardProgress::tokens_sent, or nullptr.
  const std::function<void()>* tokens_sent = nullptr;

  // Allocates an activation that lives from forward to backward.
  View keep(Shape shape) const { return saved.take(shape, device.dtype); }
  Index own_tokens() const { return batch.tokens() / device.mesh.layout.tp; }  // T
};

// Destination of a sublayer's result. The sublayer's last operation adds the residual stream, if
// there is one, and writes the sum. Without it, a norm follows the sublayer.
struct Output {
  View y;            // [T, D] = from + the result
  ConstView from{};  // [T, D], may be y; empty if nothing is added
};

// Gathers tokens x: [T, ...] -> [B * S, ...].
// Returns x itself if tp = 1; otherwise memory of `arena`.
ConstView gather_tokens(const Device& device, Arena& arena, ConstView x);
// y: [T, D] = own tokens of the sum over the tensor-parallel ranks of the tensors that
// compute(partial: [B * S, D]) writes.
void sum_tokens(const Device& device, View y, const std::function<void(View partial)>& compute);
// to: own tokens of the sum over the tensor-parallel ranks of partial: [B * S, D]. tp must be
// greater than 1.
void scatter_tokens(const Device& device, ConstView partial, Output to);

}  // namespace sy
