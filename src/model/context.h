// Contexts of a pass through the decoder: device, mesh and memory (ExecutionContext), and the
// micro-batch and saved memory of a layer (LayerContext).
//
// The ranks of a tensor-parallel group work on the same B sequences of S positions. Outside
// attention and dense FFNs, each rank holds its own T = B * S / tp consecutive tokens (sequence
// parallelism), so a token is routed once. Inside, each rank holds all B * S tokens, and a shard of
// the heads or of the FFN's width. The function gather_tokens converts T tokens to B * S. The
// functions sum_tokens and scatter_tokens convert back, and sum over the ranks. If tp = 1,
// gather_tokens and sum_tokens copy nothing, and scatter_tokens must not be called.
#pragma once

#include <functional>
#include <vector>

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "kernels/device.h"
#include "src/config.h"
#include "src/model/cache.h"
#include "src/model/statistics.h"

namespace sy {

// Device, mesh and scratch memory, the same for every pass.
struct ExecutionContext {
  Device& device;
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
struct GlobalBatchSize {
  ConstView targets;    // [1] f64 number of tokens with a target
  Index sequences;      // number of sequences, all of S tokens
  Index micro_batches;  // number of micro-batches of one rank
};

// Tokens that one stack of blocks computes: B sequences of S tokens.
struct TokenStream {
  Index sequences, seq_len;  // B, S
  ConstView ids;             // [B * S] i32
  ConstView positions;       // [B * S] i32 position of each token in its document
  ConstView segments{};      // [B * S] i32 segment of each token; empty if model.segments is 0
  ConstView rope_rows{};     // [B * S] i32 row in the rope tables of each token (RopeTables)
  // Numbers of the tokens in the training run, [B * S] i64, which key random choices. Empty in
  // evaluation and generation, where nothing is drawn.
  ConstView token_numbers{};
  // [B * S] i32; 0 if the token is padding, which experts do not receive. Empty: there is no
  // padding.
  ConstView token_mask{};
  // [B, S] i32 position in its sequence of the first token of each token's document; empty: each
  // sequence is one document. Attention stays within a document. In an encoder with a window, each
  // token of padding is a document.
  ConstView document_start{};
  // [B, S] i32 position in its sequence, or in the cache, of the end of the visible prefix of each
  // token's document. Empty: no token sees a later one, if attention is causal.
  ConstView prefix_end{};
  // [2, B * S] i32 row of each token in both tables of axial positions; empty without these
  ConstView axial_rows{};
  // [B] i32 number of tokens of each sequence that other tokens see, if attention is not causal or
  // sorts tokens; empty: all S
  ConstView lengths{};
  // [T, D] output of the stack for this rank's own tokens, and the gradient with respect to it, to
  // which the layers of later stacks add theirs. Empty if no later stack reads the output; without
  // backward, there is no gradient.
  ConstView output{};
  View doutput{};

  Index tokens() const { return sequences * seq_len; }
};

// Tokens that have a target, if the loss reads them alone. Empty: it reads all tokens.
struct TargetRows {
  ConstView tokens;   // [N] i32 index of each in the batch; the last ones may be padding
  ConstView targets;  // [N] i32; -1 for padding
  ConstView rows;     // [B * S] i32 row of each token in `tokens`; -1 if it has none
  explicit operator bool() const { return static_cast<bool>(tokens); }
};

// One micro-batch.
struct Batch {
  // One stream for each stack of blocks. The last is the decoder's, to which the targets belong.
  std::vector<TokenStream> streams;
  ConstView targets;  // [B * S] i32; a target of -1 has no loss; generation has no targets
  TargetRows target_rows{};
  GlobalBatchSize step;
  bool dropless = false;    // true in evaluation and generation: no capacity limit
  std::uint64_t seed = 0;   // of the run
  bool generation = false;  // true: there is no loss
  // If true, this is an evaluation pass: the load-balancing loss is not computed. Ranks may then
  // have different numbers of sequences.
  bool evaluation = false;

  const TokenStream& decoder() const { return streams.back(); }
  TokenStream& decoder() { return streams.back(); }
};

// State of the load-balancing loss of L routers (load_balancing.h): sums and gradients. The rows of
// a router are adjacent. G: number of segments (load_balancing_segments). The state lives from the
// first layer's forward to the first layer's backward.
struct LoadBalanceState {
  View counts;             // [L, G, E] i32 assignments
  View probability;        // [L, G, E] sums over a segment's tokens
  View tokens_per_expert;  // [L, E] i32 assignments that are not dropped
  View z_squared;          // [L] f64 sum of squared logsumexps
  // [L, G, E] gradient with respect to `probability`; unused without backward
  View dprobability;

  // Returns the state of one router.
  LoadBalanceState of(Index l) const {
    return {counts.rows(l, 1), probability.rows(l, 1), tokens_per_expert.rows(l, 1), z_squared.rows(l, 1),
            dprobability.rows(l, 1)};
  }
};

// State of the N batch norms of a model in one micro-batch.
struct BatchNormState {
  View moments;  // [N, 2 * D + 1] of ops::BatchNormMoments; they live from forward to backward
  // [N, 2, D] running averages of the model, which training passes update. Empty: this part of a
  // training pass updates none.
  View averages;
  // If true, forward reads the moments and does not compute them: backward runs it again.
  bool replay = false;
};
// Subphase of the all-reduces of batch norms (ScopedSubphase).
inline constexpr const char* batch_norm_subphase = "batch norm";

// Decisions of L routers that forward records. If `replay` is set, routers read them instead of
// deciding: their inputs may differ from those of forward by rounding. Empty: nothing is recorded.
struct RoutingDecisions {
  View experts{}, dispatch_mask{};  // [L, T, k] i32 logical experts; 0 if an assignment is dropped
  bool replay = false;

  // Returns the decisions of one router: [T, k].
  RoutingDecisions of(Index l) const {
    if (!experts) return {};
    const auto row = [&](View v) { return v.rows(l, 1).reshape({v.dim(1), v.dim(2)}); };
    return {row(experts), row(dispatch_mask), replay};
  }
};

// Hooks of the last backward pass of a step, for overlapping gradient reduction.
struct BackwardHooks {
  // Called when the gradients of a bucket (ParamSpec::bucket) are complete, in descending order of
  // buckets.
  std::function<void(Index bucket)> on_gradients_ready;
  // Called when a layer's dispatch is in flight. Collectives started now do not delay it.
  std::function<void()> on_dispatch_started;

  explicit operator bool() const { return static_cast<bool>(on_gradients_ready); }
};

// The execution context and the micro-batch state of one layer.
struct LayerContext {
  const ExecutionContext& context;
  const Batch& batch;
  const TokenStream& stream;           // of the stack that has the layer; one of the batch's
  Arena& saved;                        // memory that lives from a layer's forward to its backward
  const Cache* cache = nullptr;        // in generation, else nullptr
  LoadBalanceState load_balance = {};  // of all routers of the stage
  // Called by each router; may be nullptr.
  const RoutingHook* routing_hook = nullptr;
  View max_logits = {};  // StatisticsSink::max_logits
  // BackwardHooks::on_dispatch_started, or nullptr.
  const std::function<void()>* on_dispatch_started = nullptr;
  Recompute recompute = Recompute::none;  // activations that backward computes again
  View indexer_loss = {};                 // StatisticsSink::indexer_loss
  // Decisions of all routers of the stack; empty if not reversible. If `replay` is set, attention
  // by hashing reads lsh_orders, too.
  RoutingDecisions decisions = {};
  // Sorted tokens of the layers with attention by hashing (LshAttention::Saved::order), which
  // forward writes; nullptr if not reversible.
  std::vector<View>* lsh_orders = nullptr;
  BatchNormState batch_norm = {};  // of all batch norms of the model; empty without any

  // Returns the same context for the decoder's stream of another batch.
  LayerContext of(const Batch& other) const {
    return {context,      other,      other.decoder(),     saved,     cache,        load_balance,
            routing_hook, max_logits, on_dispatch_started, recompute, indexer_loss, {},
            nullptr,      batch_norm};
  }
  // Returns the same context for the stream of the encoder, which has no cache.
  LayerContext of_encoder() const {
    return {context,      batch,      batch.streams.front(), saved,     nullptr, {},
            routing_hook, max_logits, on_dispatch_started,   recompute, {},      {},
            nullptr,      batch_norm};
  }
  // Allocates an activation that lives from forward to backward.
  View save(Shape shape) const { return saved.take(shape, context.dtype); }
  // Returns the memory of normalised inputs and of their gathered copies: scratch memory if
  // backward computes them again.
  Arena& inputs() const { return recompute == Recompute::norms ? context.scratch : saved; }
  // Returns the memory of an FFN's hidden activations in forward, likewise.
  Arena& hidden() const { return recompute == Recompute::experts ? context.scratch : saved; }
  // True: the batch has an encoder. A pass of generation may have none, and read the cache.
  bool has_encoder() const { return batch.streams.size() > 1; }
  // Stream of the encoder, which cross-attention in the decoder reads. Its output must be computed.
  const TokenStream& encoder() const {
    SY_ASSERT(has_encoder() && (batch.streams.front().output || batch.streams.front().tokens() == 0),
              "a layer that reads an encoder, without one");
    return batch.streams.front();
  }
  Index own_tokens() const { return stream.tokens() / context.mesh.layout.tp; }  // T of this rank
  // Number of the stream's tokens in the global batch.
  Index step_tokens() const { return batch.step.sequences * stream.seq_len; }
  // Returns an entry of the cache. It is empty if there is no cache.
  LayerCache cache_entry(Index index) const { return cache ? cache->entry(index) : LayerCache{}; }
};

// Destination of a sublayer's result. The sublayer's last operation adds the residual stream to it.
// If `residual` is empty, a norm follows the sublayer.
struct Output {
  View y;                // [T, D] = residual + the result
  ConstView residual{};  // [T, D], may be y; empty if nothing is added
};

// All-gathers tokens over the tensor-parallel ranks. x: [T, ...] -> [B * S, ...].
// Returns x itself if tp = 1; otherwise memory of `arena`. Collective over tp, as are the next
// three.
ConstView gather_tokens(const ExecutionContext& context, Arena& arena, ConstView x);
// y = own tokens of the sum of `partial` over the tensor-parallel ranks. partial: [B * S, D];
// y: [T, D] of the same type.
void reduce_scatter_tokens(const ExecutionContext& context, ConstView partial, View y);
// Calls compute(partial), and sums `partial` over the tensor-parallel ranks by a reduce-scatter.
// The view `partial`: [B * S, D] must be overwritten by compute(). y: [T, D] own tokens of the sum.
// If tp = 1, `partial` is y.
void sum_tokens(const ExecutionContext& context, View y, const std::function<void(View partial)>& compute);
// Sums `partial` over the tensor-parallel ranks by a reduce-scatter, and adds to.residual.
// Shapes: partial [B * S, D]; to.y [T, D], own tokens of the sum. tp must be greater than 1.
void scatter_tokens(const ExecutionContext& context, ConstView partial, Output to);

}  // namespace sy
