// Operations of one device: about forty coarse, fused operations on contiguous views.
//
// The public functions check shapes and dtypes once and call the protected virtual do_* of a
// backend. A backend's class is declared in cpu/cpu_backend.h, cuda/cuda_backend.h or
// dry/dry_backend.cpp. Its do_* are defined in one file for each topic. A backend knows no model
// and no rank. Conventions:
//   * Dimensions: B sequences, S positions, T = B*S tokens, D width, H query heads, K kv heads, hd
//     head dimension.
//   * Further dimensions: E experts, F ffn width, V vocabulary (or the shard of this rank), k
//     choices, R routed rows, G segments.
//   * A row is a slice of a matrix for one index of its first dimension, usually the elements of
//     one token.
//   * A segment is a range of consecutive tokens. All segments have the same length. Assignments of
//     tokens to experts are counted, limited and balanced within segments.
//   * Weights are [out, in], as in y = x W^T.
//   * Weights, activations and their gradients have one type within a call, f32 or bf16. The mark
//     `c` says that an operand has this type.
//   * All other operands are f32 unless another type is named: scores, losses, sums over rows,
//     gradients of parameters, optimizer state. Sums are computed in f32 at least and rounded once.
//   * "+=" in a comment says that the operation adds to an output. It overwrites every element of
//     its other outputs.
//   * A result never depends on the number of threads or on their timing.
//   * A row of the output of a GEMM, norm, activation or attention depends on its own inputs alone,
//     never on the number of rows of the call. There are two exceptions. On a GPU, cuBLAS chooses
//     its GEMM kernel by size. Attention of one query per cached sequence
//     (AttentionMask::query_offsets) sums in another order, which is faster.
//   * Operations run in order on one stream. The host waits for them in to_host, end_read and
//     synchronize. In to_device it may wait for earlier copies.
//   * Every size may be zero.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/attention.h"
#include "kernels/tensor.h"
#include "kernels/types.h"

namespace sy {

// uniform: in [-1, 1). round_robin: forced load balancing. Row r of n elements holds n, n - 1, ...
// 1, which begin at element r mod n and continue cyclically.
enum class Distribution { normal, gumbel, uniform, round_robin };

struct Gemm {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

// Pass of a linear layer y = x w^T that reads its weight: fprop (output), or dgrad (input), `dx =
// dy w`.
enum class GemmPass { fprop, dgrad };

// A weight matrix, or a stack of E matrices, as an operand of a GEMM. A GEMM reads the packed
// weight for its pass if there is one (Backend::pack_weight), otherwise `values`.
struct Weight {
  Weight() = default;
  template <std::convertible_to<ConstView> V>
  Weight(const V& weight) : values(weight) {}
  ConstView values;  // [N, Q] or [E, N, Q] c
  // [packed_weight_bytes] u8: packed weights for fprop and for dgrad; each may be empty
  ConstView packed_fprop, packed_dgrad;
};

struct NormDesc {
  NormKind kind = NormKind::rmsnorm;
  float eps = 1e-5f;
  // Added to the weight: 1 if the weight is stored as w - 1 (Gemma team, "Gemma", 2024).
  float offset = 0;
};

// QK-norm of each head.
struct QkNorm {
  Index q_heads, k_heads;
  float eps;
  RopePairs pairs = RopePairs::half;
  float offset = 0;                   // see NormDesc::offset
  NormKind kind = NormKind::rmsnorm;  // or layernorm
  // true: one weight for each head; false: one for all queries and one for all keys
  bool each_head = false;
  constexpr Index weights() const { return each_head ? q_heads + k_heads : 2; }
  constexpr Index weight_of(Index head) const { return each_head ? head : head >= q_heads; }
};

// QK-norm over the whole projection. A row holds the elements of some query heads, then of some key
// heads, then others.
struct WholeQkNorm {
  Index queries, keys;  // elements of a row that belong to queries, and to keys
  // The same over all ranks that share the heads; divisors of the mean square.
  Index all_queries, all_keys;
  float eps;
  float offset = 0;  // see NormDesc::offset
};

struct RouteDesc {
  Score score = Score::softmax;
  int top_k = 2;
  bool renormalize = true;  // divide the scores of a token's experts by their sum
  float scale = 1.0f;       // factor of all routing weights
  int groups = 1;           // the experts form this many equal groups
  // a token chooses experts in this many groups only, those with the largest group scores
  int topk_groups = 1;
  // Score of a group: the sum of its two best selection scores (DeepSeek-V3), or the best one
  // (DeepSeek-V2).
  GroupScore group_score = GroupScore::top2;
  // If true, the selection score is computed from the logit, not from the score.
  bool select_by_logit = false;
  // Expert probability of the load-balancing loss. True: score divided by the sum of all experts'
  // scores (DeepSeek-AI, "DeepSeek-V3", 2024, eq. 19). False: softmax(logits). Both are the same if
  // the score is softmax.
  bool balance_by_score = false;
  constexpr bool balances_by_score() const { return balance_by_score && score != Score::softmax; }
};

// Element i of row r of Distribution::round_robin.
constexpr Index round_robin(Index r, Index i, Index n) {
  const Index offset = i - r % n;
  return n - (offset < 0 ? offset + n : offset);
}

// Random numbers of a Philox stream (kernels/philox.h), or the values of
// Distribution::round_robin, which ignore seed and stream.
struct Draw {
  Distribution distribution = Distribution::normal;
  std::uint64_t seed = 0, stream = 0;
  float scale = 1;  // factor of all numbers
};

struct CapacityDesc {
  DropOrder order = DropOrder::token;
  // Largest number of assignments of an expert in one segment; 0 means unlimited.
  Index capacity = 0;
};

struct CrossEntropyDesc {
  Index vocab_begin = 0;  // vocabulary index of the first logit of this rank's shard
  float softcap = 0.0f;   // cap * tanh(logit / cap); 0 means no cap
  // Factor of the mean of squared logsumexps (Chowdhery et al., "PaLM", 2022)
  double z_loss = 0;
};

// Partition of experts over ep * etp ranks. The etp ranks of an ep rank hold the same range of
// consecutive physical experts, which is equally long for each ep rank. Each of them holds a shard
// of every expert of the range, so a token goes to all of them.
struct ExpertPartition {
  Index ep = 1, etp = 1;
  // [E] i32 physical expert of each logical expert; empty: both are equal
  ConstView logical_to_physical{};
  Index first_expert = 0;  // first of the E physical experts, if they are a range of more
  Index ranks() const { return ep * etp; }
  // Largest number of ep ranks that a token with k experts can go to.
  Index max_ep_ranks(Index k) const { return std::min(k, ep); }
};

// Scopes of a load-balancing loss: of N segments of all ranks, each `per_scope` consecutive ones
// form a scope. A call covers the G segments from number `first` on.
struct LoadBalancingDesc {
  Index first = 0, per_scope = 1;
  bool together = false;  // true: one loss for all layers of the call
  // loss = factor * the sum over scopes and experts of assignments * probability
  double factor = 0;
  double z_factor = 0;  // router z-loss = z_factor * the sum of squared logsumexps
};

// Layout of the f64 row of sums that load_balancing_loss() writes for a router of E experts. Each
// function returns the offset of a field.
struct RouterSums {
  Index experts;
  constexpr Index routed() const { return 0; }         // [E] assignments
  constexpr Index dropped() const { return experts; }  // [E] dropped assignments
  // [E] sums over tokens of the probability
  constexpr Index probability() const { return 2 * experts; }
  constexpr Index loss() const { return 3 * experts; }  // [2] load-balancing loss, router z-loss
  constexpr Index size() const { return 3 * experts + 2; }
};

// Row offsets of the groups of a grouped operation: expert e has rows [offsets[e], offsets[e + 1]),
// and offsets[0] is 0.
struct GroupOffsets {
  ConstView offsets;  // [E + 1] i32
  // The same offsets in host memory. nullptr: this object is empty, and there is one matrix for all
  // rows. Only FFN operations accept an empty one.
  const std::int32_t* host = nullptr;
};

// Rows of a matrix, optionally gathered: row r is values[index[r]] with an index, otherwise
// values[r].
struct GatheredRows {
  GatheredRows() = default;
  template <std::convertible_to<ConstView> V>
  GatheredRows(const V& matrix, ConstView row_index = {}) : values(matrix), index(row_index) {}
  ConstView values;  // [N, Q] c
  // [R] i32 in [0, N); empty: no gather. Requires Backend::supports_gathered_rows
  ConstView index;
  Index rows() const { return index ? index.dim(0) : values.dim(0); }
};

struct AdamW {
  float beta1, beta2, eps, weight_decay;
};

class BlockState;  // kernels/blocked_on.h

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual std::string describe() const = 0;  // its device and its threads, for people

  // ---- memory ----
  // Allocates memory, aligned to 256 bytes, with undefined content. Throws NoMemory.
  virtual DeviceMemory allocate(Index bytes) = 0;
  // Number of free bytes of the device. On the host: the size of its memory, free or not.
  virtual Index free_bytes() const = 0;
  // true: its memory is host memory, which MPI can read
  virtual bool on_host() const { return true; }
  // Name of the device among those of the machine. Every process of the machine uses the same name
  // for it. Empty if on_host().
  virtual std::string device_id() const { return {}; }
  virtual void synchronize() {}  // waits until all enqueued operations are complete
  // Publishes the host's waits for the device to `state` from now on. No-op if on_host().
  virtual void publish_waits_to(std::shared_ptr<BlockState> /*state*/) {}
  // Graph region: calls body every time. A device may record the operations of one call, and replay
  // the recording in later calls, which saves the host the start of each operation. In every call
  // with one name, body must enqueue the same operations on the same tensors. Only the contents of
  // the tensors may change. Regions must not nest.
  virtual void graph_region(const std::string& name, const std::function<void()>& body) { body(); }
  // Largest width of a head that QK-norm and attention with a backward support.
  virtual Index max_head_dim() const { return INT64_MAX; }
  // Number of logits that are best computed at once.
  virtual Index logits_chunk() const { return Index{4} << 20; }
  Tensor tensor(Shape shape, DType dtype = DType::f32);  // filled with zeros
  // Copies x.size_bytes() bytes from the host. The caller may reuse `host` after the call.
  void to_device(const void* host, View x);
  // Copies x to the host. Waits until `host` holds the bytes.
  void to_host(ConstView x, void* host);
  // Asynchronous to_host: the host is free between the two calls. end_read returns the content of x
  // at begin_read. At most one read may be in flight, of at most read_limit bytes.
  void begin_read(ConstView x);
  void end_read(void* host);
  static constexpr Index read_limit = Index{4} << 20;
  void fill(View x, float value);  // x is f32; if value is 0, x has any type
  void copy(ConstView x, View y);  // x and y have the same number of bytes
  // y = x, each f32 or bf16 (rounded to nearest, ties to even)
  void convert(ConstView x, View y);
  void add(ConstView x, View y);     // y += x, both c
  void scale(View x, float factor);  // x *= factor, x: f32 or bf16
  // out: [1] f64 += sum x^2, summed in f64. x: f32
  void sum_squares(ConstView x, View out);

  // ---- products ----
  // Size of the packed form of a weight for one pass; 0: the pass reads `values`. A packed weight
  // may be blocked for caches, transposed, or of another type. The owner of a weight packs it once
  // for all GEMMs, and again after each change. A GEMM has the same bits with and without a packed
  // weight.
  virtual Index packed_weight_bytes(const Shape& weight, DType dtype, GemmPass pass) const { return 0; }
  // packed: [packed_weight_bytes] u8
  void pack_weight(ConstView weight, GemmPass pass, View packed);
  // c: [M, N] (+)= op(a) op(b), op(a): [M, Q] c, op(b): [Q, N] c. The type of c is `c` or f32. If b
  // is transposed, its packed form for fprop is read, otherwise that for dgrad.
  //   addend: [M, N] of the type of c, or empty: c = addend + op(a) op(b). It may be c
  //         itself, which means accumulate. It is copied only if the device cannot fuse it.
  void gemm(const Gemm& desc, ConstView a, const Weight& b, View c, ConstView addend = {});
  // Grouped GEMMs: one GEMM for each expert over its rows. In y_e = x_e w_e^T, x_e and y_e are the
  // rows of expert e, and w_e is its matrix. R is the number of rows of the GEMM, gathered or not.
  // supports_gathered_rows: whether the grouped GEMMs and the FFN operations support gathered rows.
  virtual bool supports_gathered_rows() const { return false; }
  // fprop: y_e = x_e w_e^T.  y: [R, N] c, x: [R, Q] c, w: [E, N, Q] c
  void grouped_gemm(const GatheredRows& x, const Weight& w, const GroupOffsets& groups, View y);
  // dgrad: dx_e = dy_e w_e.  dx: [R, Q] c, dy: [R, N] c, w: [E, N, Q] c
  void grouped_gemm_dgrad(const GatheredRows& dy, const Weight& w, const GroupOffsets& groups, View dx);
  // wgrad: dw_e (+)= dy_e^T x_e.  dw: [E, N, Q], dy: [R, N] c, x: [R, Q] c. The product is zero for
  // an expert without rows.
  void grouped_gemm_wgrad(const GatheredRows& dy, const GatheredRows& x, const GroupOffsets& groups, View dw,
                          bool accumulate = true);
  // Adds row_scale * bias_e to columns [first, first + n) of the rows of expert e.
  //   y: [R, N] c +=; bias: [E, n] c; row_scale: [R], empty means 1
  void grouped_bias_forward(ConstView bias, ConstView row_scale, const GroupOffsets& groups, Index first, View y);
  // Gradients of grouped_bias_forward with respect to bias and row_scale. dy: [R, N] c
  //   dbias: [E, n] += the sum over the rows of expert e of row_scale * dy
  //   drow_scale: [R] += dy . bias_e; may be empty
  void grouped_bias_backward(ConstView dy, ConstView bias, ConstView row_scale, const GroupOffsets& groups, Index first,
                             View dbias, View drow_scale);
  // y: [T, N] c += bias: [N] c
  void bias_forward(ConstView bias, View y);
  // dbias: [N] += sum over rows of dy: [T, N] c
  void bias_backward(ConstView dy, View dbias);

  // ---- norms ----
  // x, y, dy, dx: [T, D] c; weight, bias: [D] c. bias may be empty.
  // moments: [T, 2] = mean (RMSNorm: 0), 1 / sqrt(mean of (x - mean)^2 + eps)
  void norm_forward(const NormDesc& desc, ConstView x, ConstView weight, ConstView bias, View y, View moments);
  // dx +=; dweight, dbias: [D] +=. dbias is empty if there is no bias.
  void norm_backward(const NormDesc& desc, ConstView dy, ConstView x, ConstView weight, ConstView moments, View dx,
                     View dweight, View dbias);

  // ---- FFN ----
  // y = row_scale * act(h), times the up projection if gated.
  //   h, dh: [R, gated ? 2F : F] c; y, dy: [R, F] c; row_scale, drow_scale: [R] or empty
  void activation_forward(const FfnActivation& desc, ConstView h, ConstView row_scale, View y);
  void activation_backward(const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale, View dh,
                           View drow_scale);
  // Fused GEMM and activation: h = x w^T + bias, y = activation_forward of h. `w` is a stack with
  // one matrix per expert, or one matrix if `groups` is empty. A device may apply the activation to
  // a tile of h while a cache holds it.
  //   h: [R, gated ? 2F : F], y: [R, F], x: [R, D], w: [E, gated ? 2F : F, D], all c
  //   bias: [E, gated ? 2F : F] c or empty. If `groups` is empty, w and bias have no dimension E.
  void ffn_forward(const FfnActivation& desc, const GatheredRows& x, const Weight& w, ConstView bias,
                   const GroupOffsets& groups, ConstView row_scale, View h, View y);
  // Backward of out = y w^T and of the activation: dh, drow_scale = activation_backward of dout w.
  // It also writes y again, as forward computed it.
  //   dout: [R, D], w: [E, D, F], h, dh: [R, gated ? 2F : F], y: [R, F]
  void ffn_backward(const FfnActivation& desc, const GatheredRows& dout, const Weight& w, const GroupOffsets& groups,
                    ConstView h, ConstView row_scale, View dh, View drow_scale, View y);

  // ---- positions ----
  // Rotates, in place, the first `heads` heads of every token of x: [T, all_heads, hd] c. The pairs
  // lie in the first rot elements of a head. inverse: rotates back, which is the gradient.
  //   table: [positions, rot/2, 2] = cos, sin; positions: [T] i32
  void rope(View x, Index heads, ConstView positions, ConstView table, bool inverse, RopePairs pairs = RopePairs::half);

  // QK-norm of each head, fused with the rotation. Source: Henry et al., "Query-Key Normalization
  // for Transformers", 2020, with RMSNorm or LayerNorm instead of the l2 norm. The first q_heads +
  // k_heads heads are normalised, multiplied by their weight, and rotated as by rope if there is a
  // table. The other heads are copied.
  //   x, y: [T, all_heads, hd] c
  //   weight: [2, hd] c (queries, keys), or [q_heads + k_heads, hd] c (one row for each head)
  //   inverse: [T, q_heads + k_heads] = 1 / root mean square (LayerNorm: of x - mean)
  void qk_norm_forward(const QkNorm& desc, ConstView x, ConstView weight, ConstView positions, ConstView table, View y,
                       View inverse);
  // dx: [T, all_heads, hd] c = gradient with respect to x; dy: gradient with respect to y.
  //   dweight += gradient with respect to weight, of its shape
  void qk_norm_backward(const QkNorm& desc, ConstView dy, ConstView x, ConstView weight, ConstView inverse,
                        ConstView positions, ConstView table, View dx, View dweight);

  // QK-norm over the whole projection (OLMo team, "2 OLMo 2 Furious", 2024), without rotation. The
  // queries of a token are divided by the root mean square of all of them together; so are its
  // keys. If ranks share the heads, each rank sums over its own heads, and the caller reduces the
  // sums between these calls.
  //   sums: [T, 2] = the sums of x * y over the queries, and over the keys.  x, y: [T, row] c
  void whole_qk_norm_sums(const WholeQkNorm& desc, ConstView x, ConstView y, View sums);
  // y: [T, row] c = x / root mean square * weight for queries and keys; the other columns are
  // copied.
  //   weight: [queries + keys] c; squares: [T, 2] the sums of x * x
  void whole_qk_norm_forward(const WholeQkNorm& desc, ConstView x, ConstView weight, ConstView squares, View y);
  // dx: [T, row] c = gradient with respect to x; dweight: [queries + keys] +=
  //   products: [T, 2] the sums of dy * y. A rotation of both dy and y does not change them.
  void whole_qk_norm_backward(const WholeQkNorm& desc, ConstView dy, ConstView x, ConstView weight, ConstView squares,
                              ConstView products, View dx, View dweight);

  // ---- attention ----
  //   q: heads of [B, Sq, H, hd] c; k: [B, Sk, K, hd] c; v: [B, Sk, K, vd] c
  //   out: [B, Sq, H, vd] c; lse: [B, H, Sq].
  // Query head h reads kv head h / (H / K). The output `lse` is the log of the sum of
  // exponentials of a query's scores, to which a sink adds one more.
  void attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out, View lse);
  // dq, dk, dv have the shapes of q, k, v and share no element. The gradient of a key that no query
  // sees is 0. desc.mask.query_offsets must be empty.
  void attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                          ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv);
  // Gradients of the parameters of attention; each may be empty.
  //   dbias: [H, n] += gradient with respect to desc.bias
  //   dsinks: [H] += gradient with respect to desc.sinks
  void attention_backward_learned(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                                  ConstView out, ConstView lse, View dbias, View dsinks);

  // KV-cache append: y[b, offsets[b] + i] = x[b, i]. The rest of y keeps its values. x and y share
  // no element.
  //   x: heads of [B, S, N, w] c; y: heads of [B, C, N, w] c
  //   offsets: [B] i32, with offsets[b] + S <= C
  void kv_cache_append(ConstHeads x, ConstView offsets, Heads y);

  // Copies columns of heads, which latent attention combines. One head of x is broadcast.
  //   y[b, s, h] = x[b, s, h], or x[b, s, 0] if x has one head
  //   x, y: columns of any heads, of [B, S, N, w] c each, which share no element
  void broadcast_heads(ConstHeads x, Heads y);
  // Adjoint of the broadcast: y[b, s, 0] = the sum over h of x[b, s, h]. y has one head.
  void reduce_heads(ConstHeads x, Heads y);
  // Batched GEMM with one matrix for each head, w: [N, n, q] c. x and y must have no gap between
  // sequences: sequence_stride = positions * token_stride.
  //   GemmPass::fprop: y[b, s, h] = w[h] x[b, s, h], n elements from q
  //   GemmPass::dgrad: y[b, s, h] = w[h]^T x[b, s, h], q elements from n
  void batched_head_gemm(GemmPass pass, ConstHeads x, ConstView w, Heads y);

  // ---- routing ----
  // x[t, i] = scale * number (index[t] * N + i) of the stream. The numbers are computed in f64 from
  // the same bits on every backend, and rounded.
  //   x: [T, N]; index: [T] i64
  void draw(const Draw& desc, ConstView index, View x);
  // y (+)= x * (1 + the element of the stream). It is its own adjoint.
  //   x, y: [T, N] c; index: [T] i64
  void jitter(const Draw& desc, ConstView index, ConstView x, bool accumulate, View y);
  // Noisy top-k gating (Shazeer et al., "Outrageously large neural networks", 2017). The standard
  // deviation is learned: softplus(stddev).
  //   x: [T, N] += the element of the stream * softplus(stddev); stddev: [T, N]
  void noisy_gating_forward(const Draw& desc, ConstView index, ConstView stddev, View x);
  // dstddev: [T, N] c = gradient with respect to stddev; dx: [T, N] c
  void noisy_gating_backward(const Draw& desc, ConstView index, ConstView dx, ConstView stddev, View dstddev);
  // Chooses k experts for each token, by falling selection score. Ties go to the lower index. Bias
  // and noise are added to the selection score alone.
  //   logits: [T, E]; bias: [E] or empty; noise: [T, E] or empty
  //   experts: [T, k] i32
  //   weights: [T, k] = scale * score; if renormalize, divided by the sum of the token's k scores
  //   counts: [G, E] i32 assignments of each segment
  //   probability: [G, E] sums of the probabilities of each segment
  //   z_squared: [1] f64 = sum over tokens of logsumexp(logits)^2
  void route_forward(const RouteDesc& desc, ConstView logits, ConstView bias, ConstView noise, View experts,
                     View weights, View counts, View probability, View z_squared);
  // dlogits: [T, E] c = the sum of three gradients.
  //   * through the weights, dweights: [T, k]
  //   * through the probabilities, dprobability: [G, E], the gradient with respect to the sum of a
  //     token's segment
  //   * z_factor * 2 * logsumexp * softmax
  void route_backward(const RouteDesc& desc, ConstView logits, ConstView experts, ConstView weights, ConstView dweights,
                      ConstView dprobability, float z_factor, View dlogits);
  // dispatch_mask: [T, k] i32. An element is 0 if the expert is full and the assignment is dropped,
  // otherwise 1. The experts of a token must be distinct, as they are after route_forward.
  // An expert accepts assignments of a segment in this order:
  //   * token: all choices of a token before those of the next token
  //   * choice: all first choices, then all second choices
  //   * probability: falling weight; ties: lower token, then lower choice
  void apply_capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index segments, Index num_experts,
                      View dispatch_mask);
  // Builds the dispatch layout: the ranks that receive a copy of each token, and the order of the
  // copies. A token is sent once to each rank of each ep rank that holds one of its dispatched
  // experts. An expert is dispatched if its assignment is not dropped. Copies are ordered by
  // (ep rank, etp rank, token). There are N copies, at most n = T * min(k, ep) * etp.
  //   experts  [T, k] i32 logical experts. If `dispatch_mask` is empty: `physical_experts` of an
  //            outer partition.
  //   dispatch_mask  [T, k] i32. If empty, E experts from partition.first_expert on are dispatched.
  //   physical_experts  [T, k] i32 physical expert, counted from partition.first_expert; -1 if not
  //            dispatched
  //   tokens   [n] i32 token of each copy; -1 from copy N on
  //   row_id_map  [T, n / T] i32 copies of each token; -1 after the last. Order: the choice that
  //            first requires the ep rank, then the etp rank. Both `tokens` and `row_id_map` may be
  //            empty.
  //   counts   [ep * etp + E] i32: copies for each rank, assignments of each physical expert
  //   tokens_per_expert  [E] i32 assignments of each logical expert
  void dispatch_layout(const ExpertPartition& partition, ConstView experts, ConstView dispatch_mask,
                       View physical_experts, View tokens, View row_id_map, View counts, View tokens_per_expert);
  // Builds the permutation of rows: sorts assignments by (physical expert, token). It covers the L
  // physical experts from `first_expert` on; other assignments are ignored. An assignment has the
  // number a = token * k + choice. There are R rows, at most n.
  //   physical_experts  [T, k] i32 as dispatch_layout writes them
  //   assignments  [n] i32 assignment of each row; -1 from row R on
  //   tokens   [n] i32 token of each row; -1 from row R on
  //   row_id_map  [T, k] i32 row of each assignment, or -1
  //   offsets  [L + 1] i32 first row of each physical expert, and R
  void build_permutation(ConstView physical_experts, Index first_expert, View assignments, View tokens, View row_id_map,
                         View offsets);
  // Load-balancing and z-losses, their gradients, and statistics of the routers of L layers. The P
  // ranks number their segments p * G + g. Segment g of this rank is in scope (first + g) /
  // per_scope, or in the last scope.
  //   counts        [L, G, E] i32 of route_forward
  //   scope_counts  [P, L, G, E] i32 counts of P ranks
  //   probability   [L, G, E] of route_forward
  //   tokens_per_expert  [L, E] i32 of dispatch_layout
  //   z_squared     [L] f64 of route_forward
  //   dprobability  [L, G, E] = factor * the assignments in the scope (of the layer or of all)
  //   sums          [L, RouterSums(E).size()] f64 +=; may be empty. Loss: the sum over g, e of
  //                 dprobability * probability. z-loss: z_factor * z_squared.
  void load_balancing_loss(const LoadBalancingDesc& desc, ConstView counts, ConstView scope_counts,
                           ConstView probability, ConstView tokens_per_expert, ConstView z_squared, View dprobability,
                           View sums);
  // Permute: y[r] = x[index[r]]. If the index is -1, the row keeps its value.
  //   x: [N, D], y: [n, D], both c or both i32; index: [n] i32
  void permute(ConstView x, ConstView index, View y);
  // Unpermute: y[t] = addend[t] + the sum over j, in order, of x[row_id_map[t, j]] if it is not -1.
  // It is the adjoint of permute, without atomics.
  //   x: [R, D] c, row_id_map: [T, k] i32; y: [T, D] c; addend: [T, D] c, which may be y, or empty
  void unpermute(ConstView x, ConstView row_id_map, ConstView addend, View y);

  // ---- embedding and loss ----  ids, targets: [T] i32; a target of -1 carries no loss.
  // Row lookup. y: [T, D] c = table[id - vocab_begin], or zero if this rank does not hold the row.
  // table: [V, D] c
  void embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y);
  // dtable: [V, D] += the rows of dy: [T, D] c
  void embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable);
  // Contribution of this rank's vocabulary shard to the loss of each token.
  //   logits: [T, V], before the soft cap
  //   partial: [T, 3], after the soft cap = largest logit, sum exp(logit - largest), logit of the
  //            target (0 if another rank holds it)
  void cross_entropy_forward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, View partial);
  // Combines P vocabulary shards, partials: [P, T, 3]. lse: [T]; loss: [T] = lse - logit of the
  // target (0 if the target is -1)
  void cross_entropy_loss(ConstView partials, ConstView targets, View lse, View loss);
  // sums: [2] f64 += the sum of losses: [T], and the sum of lse^2: [T] over tokens with a target
  void loss_sums(ConstView losses, ConstView lse, ConstView targets, View sums);
  // dlogits = (softmax - onehot + z_loss * 2 * lse * softmax) / total; 0 if the target is -1.
  // If there is a soft cap, softmax is that of the capped logits, and dlogits has the derivative of
  // the cap as a further factor.
  //   logits: [T, V]; dlogits: [T, V] c, which may be logits itself
  //   total: [1] f64, the number of tokens with a target on all ranks; the loss is a mean over them
  void cross_entropy_backward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, ConstView lse,
                              ConstView total, View dlogits);

  // ---- optimizer ----
  // Gradient-clipping coefficient: [1] = min(1, clip / norm), or 1 if clip is 0. squares:
  // [1] f64, the sum of squares of the gradient. NaN if the norm is not finite.
  void clip_coefficient(ConstView squares, float clip, View coefficient);
  // AdamW with decoupled weight decay (Loshchilov and Hutter, 2019). m, v are the moving averages
  // of g * coefficient and of its square.
  //   w -= lr * (m / bias1 / (sqrt(v / bias2) + eps) + weight_decay * w)
  // If coefficient is NaN, nothing changes. Only `step_scalars` change from step to step.
  //   g, w, m, v: [n]; coefficient: [1]
  //   step_scalars: [3] = lr, bias1 = 1 - beta1^step, bias2 = 1 - beta2^step
  //   rounded: [n] bf16 = w; may be empty
  void adamw(const AdamW& desc, ConstView coefficient, ConstView step_scalars, ConstView g, View w, View m, View v,
             View rounded);

 protected:
  virtual void do_to_device(const void* host, View x) = 0;
  virtual void do_to_host(ConstView x, void* host) = 0;
  virtual void do_begin_read(ConstView x) = 0;
  virtual void do_end_read(void* host, Index bytes) = 0;
  virtual void do_fill(View x, float value) = 0;
  virtual void do_copy(ConstView x, View y) = 0;
  virtual void do_convert(ConstView x, View y) = 0;
  virtual void do_add(ConstView x, View y) = 0;
  virtual void do_scale(View x, float factor) = 0;
  virtual void do_sum_squares(ConstView x, View out) = 0;
  // Called only if packed_weight_bytes is not 0.
  virtual void do_pack_weight(ConstView weight, GemmPass pass, View packed);
  // addend: empty, or other memory than c; then desc.accumulate is false
  virtual void do_gemm(const Gemm& desc, ConstView a, const Weight& b, ConstView addend, View c) = 0;
  virtual void do_grouped_gemm(const GatheredRows& x, const Weight& w, const GroupOffsets& groups, View y) = 0;
  virtual void do_grouped_gemm_dgrad(const GatheredRows& dy, const Weight& w, const GroupOffsets& groups, View dx) = 0;
  virtual void do_grouped_gemm_wgrad(const GatheredRows& dy, const GatheredRows& x, const GroupOffsets& groups, View dw,
                                     bool accumulate) = 0;
  virtual void do_grouped_bias_forward(ConstView bias, ConstView row_scale, const GroupOffsets& groups, Index first,
                                       View y) = 0;
  virtual void do_grouped_bias_backward(ConstView dy, ConstView bias, ConstView row_scale, const GroupOffsets& groups,
                                        Index first, View dbias, View drow_scale) = 0;
  virtual void do_bias_forward(ConstView bias, View y) = 0;
  virtual void do_bias_backward(ConstView dy, View dbias) = 0;
  virtual void do_norm_forward(const NormDesc& desc, ConstView x, ConstView weight, ConstView bias, View y,
                               View moments) = 0;
  virtual void do_norm_backward(const NormDesc& desc, ConstView dy, ConstView x, ConstView weight, ConstView moments,
                                View dx, View dweight, View dbias) = 0;
  virtual void do_activation_forward(const FfnActivation& desc, ConstView h, ConstView row_scale, View y) = 0;
  virtual void do_activation_backward(const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale,
                                      View dh, View drow_scale) = 0;
  // The default implementation calls one operation after the other.
  virtual void do_ffn_forward(const FfnActivation& desc, const GatheredRows& x, const Weight& w, ConstView bias,
                              const GroupOffsets& groups, ConstView row_scale, View h, View y);
  virtual void do_ffn_backward(const FfnActivation& desc, const GatheredRows& dout, const Weight& w,
                               const GroupOffsets& groups, ConstView h, ConstView row_scale, View dh, View drow_scale,
                               View y);
  virtual void do_rope(View x, Index heads, ConstView positions, ConstView table, bool inverse, RopePairs pairs) = 0;
  virtual void do_qk_norm_forward(const QkNorm& desc, ConstView x, ConstView weight, ConstView positions,
                                  ConstView table, View y, View inverse) = 0;
  virtual void do_qk_norm_backward(const QkNorm& desc, ConstView dy, ConstView x, ConstView weight, ConstView inverse,
                                   ConstView positions, ConstView table, View dx, View dweight) = 0;
  virtual void do_whole_qk_norm_sums(const WholeQkNorm& desc, ConstView x, ConstView y, View sums) = 0;
  virtual void do_whole_qk_norm_forward(const WholeQkNorm& desc, ConstView x, ConstView weight, ConstView squares,
                                        View y) = 0;
  virtual void do_whole_qk_norm_backward(const WholeQkNorm& desc, ConstView dy, ConstView x, ConstView weight,
                                         ConstView squares, ConstView products, View dx, View dweight) = 0;
  virtual void do_attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out,
                                    View lse) = 0;
  virtual void do_attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k,
                                     ConstHeads v, ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv) = 0;
  virtual void do_attention_backward_learned(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k,
                                             ConstHeads v, ConstView out, ConstView lse, View dbias, View dsinks) = 0;
  virtual void do_kv_cache_append(ConstHeads x, ConstView offsets, Heads y) = 0;
  virtual void do_broadcast_heads(ConstHeads x, Heads y) = 0;
  virtual void do_reduce_heads(ConstHeads x, Heads y) = 0;
  virtual void do_batched_head_gemm(GemmPass pass, ConstHeads x, ConstView w, Heads y) = 0;
  virtual void do_draw(const Draw& desc, ConstView index, View x) = 0;
  virtual void do_jitter(const Draw& desc, ConstView index, ConstView x, bool accumulate, View y) = 0;
  virtual void do_noisy_gating_forward(const Draw& desc, ConstView index, ConstView stddev, View x) = 0;
  virtual void do_noisy_gating_backward(const Draw& desc, ConstView index, ConstView dx, ConstView stddev,
                                        View dstddev) = 0;
  virtual void do_route_forward(const RouteDesc& desc, ConstView logits, ConstView bias, ConstView noise, View experts,
                                View weights, View counts, View probability, View z_squared) = 0;
  virtual void do_route_backward(const RouteDesc& desc, ConstView logits, ConstView experts, ConstView weights,
                                 ConstView dweights, ConstView dprobability, float z_factor, View dlogits) = 0;
  virtual void do_apply_capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index segments,
                                 Index num_experts, View dispatch_mask) = 0;
  virtual void do_dispatch_layout(const ExpertPartition& partition, ConstView experts, ConstView dispatch_mask,
                                  View physical_experts, View tokens, View row_id_map, View counts,
                                  View tokens_per_expert) = 0;
  virtual void do_build_permutation(ConstView physical_experts, Index first_expert, View assignments, View tokens,
                                    View row_id_map, View offsets) = 0;
  virtual void do_load_balancing_loss(const LoadBalancingDesc& desc, ConstView counts, ConstView scope_counts,
                                      ConstView probability, ConstView tokens_per_expert, ConstView z_squared,
                                      View dprobability, View sums) = 0;
  virtual void do_permute(ConstView x, ConstView index, View y) = 0;
  virtual void do_unpermute(ConstView x, ConstView row_id_map, ConstView addend, View y) = 0;
  virtual void do_embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y) = 0;
  virtual void do_embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable) = 0;
  virtual void do_cross_entropy_forward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                                        View partial) = 0;
  virtual void do_cross_entropy_loss(ConstView partials, ConstView targets, View lse, View loss) = 0;
  virtual void do_loss_sums(ConstView losses, ConstView lse, ConstView targets, View sums) = 0;
  virtual void do_cross_entropy_backward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                                         ConstView lse, ConstView total, View dlogits) = 0;
  virtual void do_clip_coefficient(ConstView squares, float clip, View coefficient) = 0;
  virtual void do_adamw(const AdamW& desc, ConstView coefficient, ConstView step_scalars, ConstView g, View w, View m,
                        View v, View rounded) = 0;

 private:
  Index reading_ = 0;  // size of the read in flight; 0: no read is in flight
};

// make_cpu, make_cuda and make_backend create a backend. The latter two throw NoBackend if it is
// unavailable.
std::unique_ptr<Backend> make_cpu();
// local_rank: number of this process among those of the machine; processes use devices round-robin.
// cuda_available: whether make_cuda would succeed.
std::unique_ptr<Backend> make_cuda(int local_rank = 0);
bool cuda_available();
// Dry-run backend (kernels/dry/dry.h). It allocates as a run on `planned_backend` would: packed
// weights, gathered rows and logits chunks. `planned_backend` must outlive it. If nullptr, the
// defaults of Backend apply.
std::unique_ptr<Backend> make_dry(const Backend* planned_backend = nullptr);
std::unique_ptr<Backend> make_backend(std::string_view name, int local_rank = 0);  // auto|cpu|cuda

}  // namespace sy
