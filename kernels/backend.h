// What one device computes: about forty coarse, fused operations on contiguous views.
//
// The public functions check shapes and dtypes once and call the protected virtual do_* of a backend. A backend's class
// is declared in cpu/cpu_backend.h, cuda/cuda_backend.h or dry/dry_backend.cpp, and its do_* are defined in the files
// of their topics. They know no model and no rank. Conventions:
//   * Dimensions: B sequences, S positions, T = B*S tokens, D width, H query heads, K kv heads, hd width of a head,
//     E experts, F ffn width, V vocabulary (or the part of it held here), k choices, R routed rows, G segments.
//   * A row is what a matrix holds for one index of its first dimension, most often one token's elements.
//   * A segment is a run of consecutive tokens, all segments being equally long. The assignments of tokens to experts
//     are counted, limited and balanced within segments.
//   * Weights are [out, in], as in y = x W^T.
//   * Weights, activations and their gradients have one type within a call, f32 or bf16: operands marked `c` are of it.
//     All other operands are f32 unless another type is named: scores, losses, sums over rows, the gradients of
//     parameters, and the optimizer's state. Sums are taken in f32 at least and rounded once.
//   * "+=" in a comment says that the operation adds to an output. It overwrites every element of its other outputs.
//   * A result never depends on the number of threads or on their timing. A row of a product, norm, activation or
//     attention output depends only on its own inputs, never on how many rows share the call. Products on a device are
//     one exception, as cuBLAS chooses its kernel by their size; attention of one query to each sequence of a cache is
//     the other (Visibility::query_offsets), since what is fastest there sums in another order.
//   * Operations run in order on one stream. The host waits for them in to_host, end_read and synchronize alone.
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

namespace sy {

enum class NormKind { none, rmsnorm, layernorm };
enum class Activation { relu, gelu, gelu_tanh, silu, relu2, sigmoid, identity, silu_clamped };
enum class Score { softmax, sigmoid, sqrt_softplus };
enum class GroupScore { top2, max };
// uniform: in [-1, 1). turns: of rows of n, row r has the numbers n, n - 1, ... 1 from its element r mod n on, and around.
enum class Distribution { normal, gumbel, uniform, turns };
enum class DropOrder { token, choice, probability };

struct Gemm {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

// The two products of a layer y = x w^T that read its weight: its output, and its input's gradient dx = dy w.
enum class WeightUse { output, input };

// A weight matrix, or a stack of E of them, as products take it. Where there is a prepared form (Backend::prepare), the
// product that it is for reads that, and otherwise the values.
struct Weight {
  Weight() = default;
  template <std::convertible_to<ConstView> V>
  Weight(const V& values) : values(values) {}
  ConstView values;         // [N, Q] or [E, N, Q] c
  ConstView output, input;  // [prepared_bytes] u8 for WeightUse::output and WeightUse::input, or none
};

struct NormDesc {
  NormKind kind = NormKind::rmsnorm;
  float eps = 1e-5f;
  float offset = 0;  // is added to the weight: 1 where the weight is a difference from 1 (Gemma team, "Gemma", 2024)
};

struct FfnActivation {
  Activation act = Activation::silu;
  bool gated = true;  // h holds [act input | linear half] side by side: y = act(h[:, :F]) * h[:, F:]
  float beta = 1;     // silu(x) = x sigmoid(beta x) (Ramachandran et al., "Searching for activation functions", 2017)
  // Of silu_clamped (OpenAI, "gpt-oss", 2025), which is silu(min(x, limit)) and has (clamp(l, -limit, limit) + 1) in the
  // place of the linear half l.
  float limit = 7;
};

// Which elements of a head are turned together, of the first `rot`: (i, i + rot/2), or neighbours, (2i, 2i + 1).
enum class RopePairs { half, interleaved };

struct QkNorm {
  Index q_heads, k_heads;
  float eps;
  RopePairs pairs = RopePairs::half;
  float offset = 0;                   // as NormDesc::offset
  NormKind kind = NormKind::rmsnorm;  // or layernorm
  bool each_head = false;  // each head has a weight of its own, in place of one of all queries and one of all keys
  constexpr Index weights() const { return each_head ? q_heads + k_heads : 2; }
  constexpr Index weight_of(Index head) const { return each_head ? head : head >= q_heads; }
};

// QK-norm over the whole projection. A row holds the elements of some query heads, then those of some key heads, then
// others.
struct WholeQkNorm {
  Index queries, keys;          // elements of a row that are of queries, and of keys
  Index all_queries, all_keys;  // those of all ranks that share the heads, over which the mean square is taken
  float eps;
  float offset = 0;  // as NormDesc::offset
};

struct RouteDesc {
  Score score = Score::softmax;
  int top_k = 2;
  bool renormalize = true;
  float scale = 1.0f;
  int groups = 1;       // the experts form this many equal groups, and a token may choose only within the
  int group_limit = 1;  // `group_limit` groups of the largest score
  // The sum of a group's two best selection scores (DeepSeek-V3), or the best one (DeepSeek-V2).
  GroupScore group_score = GroupScore::top2;
  bool select_by_logit = false;  // the selection score is made of the logit in place of the score
  // What balance takes for an expert's probability: its score divided by the sum of all experts' scores (DeepSeek-AI,
  // "DeepSeek-V3", 2024, eq. 19), or softmax(logits), which is the same where that is the score.
  bool balance_by_score = false;
  constexpr bool balances_by_score() const { return balance_by_score && score != Score::softmax; }
};

// Element i of row r of Distribution::turns.
constexpr Index turn(Index r, Index i, Index n) {
  const Index behind = i - r % n;
  return n - (behind < 0 ? behind + n : behind);
}

// Random numbers of a stream (kernels/philox.h), or those of Distribution::turns, which no stream has a part in.
struct Draw {
  Distribution distribution = Distribution::normal;
  std::uint64_t seed = 0, stream = 0;
  float scale = 1;  // what they are multiplied by
};

struct CapacityDesc {
  DropOrder order = DropOrder::token;
  Index capacity = 0;  // the most assignments of one segment that an expert takes; 0: no limit
};

struct CrossEntropyDesc {
  Index vocab_begin = 0;  // the vocabulary's index of the first logit held here
  float softcap = 0.0f;   // cap * tanh(logit / cap); 0: none
  double z_loss = 0;      // of the mean of squared logsumexps (Chowdhery et al., "PaLM", 2022)
};

// How experts lie on the ranks that share them. Each of the `owners` has an equal run of consecutive places, with an expert
// in each, and is itself `parts` ranks that each hold a part of every expert of the run. A token goes to all parts of its experts.
struct ExpertSplit {
  Index owners = 1, parts = 1;
  ConstView places{};  // [E] i32 the place of each expert; none: each expert is in the place of its number
  Index first = 0;     // of places that are among more: the first of the E
  Index ranks() const { return owners * parts; }
  // To how many owners a token with k experts may go.
  Index most_owners(Index k) const { return std::min(k, owners); }
};

// The scopes of a load-balance loss. Of N segments of all ranks, each `per_scope` consecutive ones form a scope. A call
// is about the G segments that begin with number `first` of the N.
struct BalanceDesc {
  Index first = 0, per_scope = 1;
  bool together = false;  // all layers of the call have one loss
  double factor = 0;      // the loss is factor * the sum over scopes and experts of assignments * probability
  double z_factor = 0;    // the router z-loss is z_factor * the sum of squared logsumexps
};

// What balance() adds up for a router of E experts lies in one row of f64: where each kind of number begins.
struct RouterSums {
  Index experts;
  constexpr Index routed() const { return 0; }                 // [E] assignments
  constexpr Index dropped() const { return experts; }          // [E] those of them that were dropped
  constexpr Index probability() const { return 2 * experts; }  // [E] sums over tokens of the probability
  constexpr Index loss() const { return 3 * experts; }         // [2] the load-balance loss, and the router z-loss
  constexpr Index size() const { return 3 * experts + 2; }
};

// Which rows of a matrix are whose: expert e owns rows [offsets[e], offsets[e + 1]), and offsets[0] is 0.
struct ExpertRows {
  ConstView offsets;                   // [E + 1] i32
  const std::int32_t* host = nullptr;  // the same numbers on the host
};

// The rows of a matrix that a product takes: row r is values[index[r]], or, without an index, values[r].
struct RowsOf {
  RowsOf() = default;
  template <std::convertible_to<ConstView> V>
  RowsOf(const V& values, ConstView index = {}) : values(values), index(index) {}
  ConstView values;  // [N, Q] c
  ConstView index;   // [R] i32 in [0, N), or none. Only where Backend::reads_by_index
  Index rows() const { return index ? index.dim(0) : values.dim(0); }
};

struct AdamW {
  float beta1, beta2, eps, weight_decay;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual std::string describe() const = 0;  // its device and its threads, for people

  // ---- memory ----
  virtual DeviceMemory allocate(Index bytes) = 0;  // aligned to 256 bytes, content undefined
  virtual Index free_bytes() const = 0;            // how much can still be allocated
  virtual bool on_host() const { return true; }    // whether its memory is the host's, so that MPI may read it
  // Names its device among those of the machine, in words that another process on the machine would use too.
  virtual std::string device_id() const { return {}; }
  virtual void synchronize() {}
  // Calls body. In every pass of one name, body calls the same operations on the same tensors; only what the tensors
  // hold may change. A backend may record such a pass once, so that the host need not start each operation again.
  virtual void repeated(const std::string& name, const std::function<void()>& body) { body(); }
  virtual Index largest_head() const { return INT64_MAX; }         // the widest hd that QK-norm and training take
  virtual Index logits_at_once() const { return Index{4} << 20; }  // how many logits are best computed at once
  Tensor tensor(Shape shape, DType dtype = DType::f32);            // filled with zeros
  void to_device(const void* host, View x);
  void to_host(ConstView x, void* host);
  // to_host in two halves, between which the host is free: end_read gives what x held when begin_read was called. Only
  // one read may be under way, of at most read_limit bytes.
  void begin_read(ConstView x);
  void end_read(void* host);
  static constexpr Index read_limit = Index{4} << 20;
  void fill(View x, float value);           // x is f32; for value 0 it may be of any type
  void copy(ConstView x, View y);           // x and y have the same number of bytes
  void convert(ConstView x, View y);        // y = x, each f32 or bf16 (rounded to nearest, ties to even)
  void add(ConstView x, View y);            // y += x, both c
  void scale(View x, float factor);         // x *= factor, x: f32 or bf16
  void sum_squares(ConstView x, View out);  // out: [1] f64 += sum x^2, summed in f64

  // ---- products ----
  // A backend may want a weight in another form than rows: packed for its caches, transposed, of another type. Whoever owns
  // the weight has it prepared once for all products until it changes, and again after that. A product's result is the
  // same, bit by bit, with and without. prepared: [prepared_bytes] u8, which is 0 where the values serve as they are.
  virtual Index prepared_bytes(const Shape& weight, DType dtype, WeightUse use) const { return 0; }
  void prepare(ConstView weight, WeightUse use, View prepared);
  // c: [M, N] (+)= op(a) op(b), op(a): [M, Q] c, op(b): [Q, N] c. c itself is c or f32. A prepared b is that of
  // WeightUse::output where it is transposed, otherwise that of WeightUse::input.
  // from: [M, N] of c's type, or none: c = from + op(a) op(b), without a copy where the device can. It may be c, which
  // is to accumulate.
  void gemm(const Gemm& desc, ConstView a, const Weight& b, View c, ConstView from = {});
  // The grouped products are one product for each expert, over the rows that it owns. In y_e = x_e w_e^T, x_e and y_e
  // are expert e's rows and w_e is its matrix. R counts the rows that a product takes, through an index or not.
  // reads_by_index: whether these products and the FFN's take rows through an index.
  virtual bool reads_by_index() const { return false; }
  // y: [R, N] c; y_e = x_e w_e^T.  x: [R, Q] c, w: [E, N, Q] c
  void grouped_gemm(const RowsOf& x, const Weight& w, const ExpertRows& rows, View y);
  // dx: [R, Q] c; dx_e = dy_e w_e.  dy: [R, N] c
  void grouped_gemm_input(const RowsOf& dy, const Weight& w, const ExpertRows& rows, View dx);
  // dw: [E, N, Q]; dw_e (+)= dy_e^T x_e, which is zero for an expert without rows.  dy, x: c
  void grouped_gemm_weight(const RowsOf& dy, const RowsOf& x, const ExpertRows& rows, View dw, bool accumulate = true);
  // Of columns [first, first + n) of y: [R, N] c, those of expert e's rows += row_scale * bias_e. bias: [E, n] c;
  // row_scale: [R] or none, which is 1
  void grouped_bias_forward(ConstView bias, ConstView row_scale, const ExpertRows& rows, Index first, View y);
  // dbias: [E, n] += the sum over expert e's rows of row_scale * dy: [R, N] c; drow_scale: [R] or none += dy . bias_e
  void grouped_bias_backward(ConstView dy, ConstView bias, ConstView row_scale, const ExpertRows& rows, Index first,
                             View dbias, View drow_scale);
  // y: [T, N] c += bias: [N] c
  void bias_forward(ConstView bias, View y);
  // dbias: [N] += sum over rows of dy: [T, N] c.
  void bias_backward(ConstView dy, View dbias);

  // ---- norms ----
  // x, y, dy, dx: [T, D] c; weight, bias: [D] c (bias may be none); moments: [T, 2] = mean (RMSNorm: 0), 1/deviation
  void norm_forward(const NormDesc& desc, ConstView x, ConstView weight, ConstView bias, View y, View moments);
  // dx +=; dweight, dbias: [D] += (none when there is no bias)
  void norm_backward(const NormDesc& desc, ConstView dy, ConstView x, ConstView weight, ConstView moments, View dx,
                     View dweight, View dbias);

  // ---- FFN ----
  // h, dh: [R, gated ? 2F : F] c; y, dy: [R, F] c; row_scale, drow_scale: [R] or none
  // y = row_scale * act(h) (* the linear half)
  void activation_forward(const FfnActivation& desc, ConstView h, ConstView row_scale, View y);
  void activation_backward(const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale, View dh,
                           View drow_scale);
  // The same beside the product that they follow: w is a stack [E, N, Q] for the rows of each expert, or, without
  // `rows`, one matrix [N, Q] for all. Where the device can, a part of the product goes through the activation while a
  // cache holds it.
  // h: [R, gated ? 2F : F] = x w^T + bias, y: [R, F] = activation_forward of h.  x: [R, D], w: [E, gated ? 2F : F, D],
  // bias: [E, gated ? 2F : F] c or none; without `rows`, w and bias are without E
  void ffn_forward(const FfnActivation& desc, const RowsOf& x, const Weight& w, ConstView bias, const ExpertRows& rows,
                   ConstView row_scale, View h, View y);
  // Of an output out = y w^T. dh, drow_scale = activation_backward of dout w, and y again as forward had it.
  // dout: [R, D], w: [E, D, F], h, dh: [R, gated ? 2F : F], y: [R, F]
  void ffn_backward(const FfnActivation& desc, const RowsOf& dout, const Weight& w, const ExpertRows& rows, ConstView h,
                    ConstView row_scale, View dh, View drow_scale, View y);

  // ---- positions ----
  // Rotates, in place, the first `heads` heads of every token of x: [T, all_heads, hd] c, by pairs of the first rot
  // elements. table: [positions, rot/2, 2] = cos, sin; positions: [T] i32.
  // inverse: rotates back, which is the gradient.
  void rope(View x, Index heads, ConstView positions, ConstView table, bool inverse, RopePairs pairs = RopePairs::half);

  // QK-norm by head and rotation, at once (Henry et al., "Query-Key Normalization for Transformers", 2020, with RMSNorm
  // or LayerNorm in place of the l2 norm). The first q_heads + k_heads heads of x: [T, all_heads, hd] c are normalised,
  // multiplied by weight: [2, hd] c (its first row for queries, its second for keys) or [q_heads + k_heads, hd] (a row for
  // each head), and, where a table is given, rotated as by rope; the other heads are copied. y: [T, all_heads, hd] c;
  // inverse: [T, q_heads + k_heads] = 1 / root mean square (of what differs from the mean).
  void qk_norm_forward(const QkNorm& desc, ConstView x, ConstView weight, ConstView positions, ConstView table, View y,
                       View inverse);
  // dx: [T, all_heads, hd] c = the gradient of x for dy, the gradient of y; dweight: as weight, +=
  void qk_norm_backward(const QkNorm& desc, ConstView dy, ConstView x, ConstView weight, ConstView inverse,
                        ConstView positions, ConstView table, View dx, View dweight);

  // QK-norm over the whole projection (OLMo team, "2 OLMo 2 Furious", 2024), without rotation: the queries of a token are
  // divided by the root mean square of all of them together, and so are its keys. Where ranks share the heads, each sums
  // over its own, and the sums are added up over the ranks between these calls.
  // sums: [T, 2] = the sums over the queries, and over the keys, of x * y.  x, y: [T, row] c
  void whole_qk_norm_sums(const WholeQkNorm& desc, ConstView x, ConstView y, View sums);
  // y: [T, row] c = x / root mean square * weight: [queries + keys] c for queries and keys; what is behind them is copied.
  // squares: [T, 2] the sums of x * x
  void whole_qk_norm_forward(const WholeQkNorm& desc, ConstView x, ConstView weight, ConstView squares, View y);
  // dx: [T, row] c = the gradient of x for dy; dweight: [queries + keys] +=.  products: [T, 2] the sums of dy * y, which
  // are the same behind a rotation of both.
  void whole_qk_norm_backward(const WholeQkNorm& desc, ConstView dy, ConstView x, ConstView weight, ConstView squares,
                              ConstView products, View dx, View dweight);

  // ---- attention ----
  // q: heads of [B, Sq, H, hd] c; k: [B, Sk, K, hd] c; v: [B, Sk, K, vd] c; out: [B, Sq, H, vd] c; lse: [B, H, Sq]
  // Query head h reads kv head h / (H / K). lse is the log of the sum of exponentials of each query's scores, and of the
  // head's sink where there is one.
  void attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out, View lse);
  // dq, dk, dv have the shapes of q, k, v and share no element. The gradient of a key that no query sees is 0.
  void attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                          ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv);
  // The gradients of what attention itself learns. dbias: [H, n], of desc.bias, or none; dsinks: [H], of desc.sinks, or
  // none. Both +=
  void attention_backward_learned(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                                  ConstView out, ConstView lse, View dbias, View dsinks);

  // Vectors to their places in a cache: y[b, offsets[b] + i] = x[b, i].  x: heads of [B, S, N, w] c, offsets: [B] i32,
  // y: heads of [B, C, N, w] c with offsets[b] + S <= C. The rest of y stays. They share no element.
  void append_heads(ConstHeads x, ConstView offsets, Heads y);

  // Parts of heads, as latent attention puts them together. x, y: columns of any heads, of [B, S, N, w] c each.
  // y[b, s, h] = x[b, s, h], or, where x has one head, x[b, s, 0]. They share no element.
  void copy_heads(ConstHeads x, Heads y);
  // y: one head: y[b, s, 0] = the sum over h of x[b, s, h], which is the adjoint of copying one head to several.
  void sum_heads(ConstHeads x, Heads y);
  // Each head has a matrix of its own, w: [N, n, q] c. WeightUse::output: y[b, s, h] = w[h] x[b, s, h], n elements of q.
  // WeightUse::input: y[b, s, h] = w[h]^T x[b, s, h], q elements of n. Positions of all sequences lie equally far apart.
  void heads_gemm(WeightUse use, ConstHeads x, ConstView w, Heads y);

  // ---- routing ----
  // x: [T, N]; element i of row t = scale * number index[t] * N + i of the stream. index: [T] i64. The numbers are
  // computed in f64 from the same bits on every backend, and rounded.
  void draw(const Draw& desc, ConstView index, View x);
  // y: [T, N] c (+)= x: [T, N] c times (1 + the element of the stream). index: [T] i64. It is its own adjoint.
  void jitter(const Draw& desc, ConstView index, ConstView x, bool accumulate, View y);
  // Noise of a learned size (Shazeer et al., "Outrageously large neural networks", 2017): x: [T, N] += the element of the
  // stream * softplus(size: [T, N]).
  void sized_noise_forward(const Draw& desc, ConstView index, ConstView size, View x);
  // dsize: [T, N] c = the gradient by size of dx: [T, N] c
  void sized_noise_backward(const Draw& desc, ConstView index, ConstView dx, ConstView size, View dsize);
  // logits: [T, E] -> experts: [T, k] i32 by falling selection score (ties: the lower index first); weights: [T, k];
  // and for each of the G segments: counts: [G, E] i32 assignments, probability: [G, E] the sum of the probabilities.
  // z_squared: [1] f64 = sum over tokens of logsumexp(logits)^2. bias: [E] or none, noise: [T, E] or none: added to the
  // score for the selection alone.
  void route_forward(const RouteDesc& desc, ConstView logits, ConstView bias, ConstView noise, View experts,
                     View weights, View counts, View probability, View z_squared);
  // dlogits: [T, E] c = through the weights (dweights: [T, k])
  //                 + through each token's probabilities (dprobability: [G, E], the gradient of its segment's sum)
  //                 + z_factor * 2 * logsumexp * softmax.
  void route_backward(const RouteDesc& desc, ConstView logits, ConstView experts, ConstView weights, ConstView dweights,
                      ConstView dprobability, float z_factor, View dlogits);
  // keep: [T, k] i32 = 1 where the expert still has room for the assignment within the token's segment, 0 where the
  // assignment is dropped. Who comes first is said by the order. token: all of a token's choices before the next
  // token's. choice: all first choices, then all second ones. probability: the largest weight first (ties: lower token,
  // then lower choice). A token's experts must be distinct, as route_forward leaves them.
  void capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index segments, Index num_experts,
                View keep);
  // Which ranks a token is sent to: once to each part of each owner of any of its kept experts. What is sent is a copy of the
  // token's row; copies are in the order of (owner, part, token). Of n = T * min(k, owners) * parts possible ones, N are used.
  // keep: [T, k] i32. None: `experts` are places that another split left, and kept are those of the E from split.first on.
  // places: [T, k] i32 the place of the expert of a kept assignment, from split.first on; -1 of one that is dropped.
  // tokens: [n] i32 copy -> token, -1 from copy N on. slots: [T, n / T] i32 the token's copies in the order of the choices which
  // first call for them, and of the parts; -1 behind the last. Both may be none.
  // counts: [owners * parts + E] i32 the copies for each rank, then the kept assignments of each place;
  // kept: [E] i32 those of each expert, by its number.
  void plan_sends(const ExpertSplit& split, ConstView experts, ConstView keep, View places, View tokens, View slots,
                  View counts, View kept);
  // Orders what has arrived for the experts in the L places from `first` on: those assignments, by (place, token), are the R rows
  // that they work on. Which others a token has makes no difference. An assignment is numbered a = token * k + choice.
  // places: [T, k] i32 as plan_sends leaves them.
  // rows: [n] i32, row -> assignment; tokens: [n] i32, row -> token; n is at least R, and both are -1 from row R on.
  // slots: [T, k] i32, assignment -> row or -1; offsets: [L + 1] i32 the first row of each place, and R.
  void sort_assignments(ConstView places, Index first, View rows, View tokens, View slots, View offsets);
  // The losses that keep experts equally loaded, and the sums that are reported about the routers of L layers. counts:
  // [L, G, E] i32, probability: [L, G, E] and z_squared: [L] f64 are route_forward's; scope_counts: [P, L, G, E] i32 are the
  // counts of P ranks, whose segments are numbered p * G + g; kept: [L, E] i32 is plan_sends'. A scope has per_scope
  // consecutive segments; segment g of this rank lies in scope (first + g) / per_scope, or in the last scope.
  // dprobability: [L, G, E] = factor * the assignments of its layer, or of all layers together, in its scope.
  // sums, where given: [L, RouterSums of E] f64 +=, where the loss is the sum over g, e of dprobability * probability, and
  // the z-loss is z_factor * z_squared.
  void balance(const BalanceDesc& desc, ConstView counts, ConstView scope_counts, ConstView probability, ConstView kept,
               ConstView z_squared, View dprobability, View sums);
  // y: [n, D] = x[index[r]]; index -1 leaves the row as it is.  x: [N, D], index: [n] i32; x, y: c, or i32
  void gather_rows(ConstView x, ConstView index, View y);
  // y: [T, D] = from + the sum of x[slots[t, j]] over j in order, where slots[t, j] >= 0. x: [R, D], slots: [T, k];
  // from: [T, D], which may be y, or none; x, from, y: c. It is the adjoint of gather_rows, without atomics.
  void combine_rows(ConstView x, ConstView slots, ConstView from, View y);

  // ---- embedding and loss ----  ids, targets: [T] i32; a target of -1 carries no loss
  // y: [T, D] c = table[id - vocab_begin], zero where that row is not held here. table: [V, D] c
  void embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y);
  // dtable: [V, D] += the rows of dy: [T, D] c
  void embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable);
  // What the part of the vocabulary that is held here gives to each token's loss. logits: [T, V]; partial: [T, 3] = the
  // largest logit, sum exp(logit - largest), the target's logit (0 where it is not held here)
  void cross_entropy_forward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, View partial);
  // Joins the results of P parts of the vocabulary, partials: [P, T, 3], into lse: [T] and loss: [T] = lse - target's
  // logit (0 where the target is -1).
  void cross_entropy_loss(ConstView partials, ConstView targets, View lse, View loss);
  // sums: [2] f64 += the sum of losses: [T], and that of lse^2: [T] over tokens with a target.
  void loss_sums(ConstView losses, ConstView lse, ConstView targets, View sums);
  // dlogits: [T, V] c = (softmax - onehot + z_loss * 2 * lse * softmax) / total; 0 where the target is -1. dlogits may be
  // logits: [T, V] itself. total: [1] f64 = how many tokens with a target the loss is the mean over, here and elsewhere.
  void cross_entropy_backward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, ConstView lse,
                              ConstView total, View dlogits);

  // ---- optimizer ----
  // factor: [1] = what a gradient is multiplied by, given the sum of its squares, squares: [1] f64: clip / norm where
  // its norm is larger than clip, otherwise 1 (for clip 0: always 1); NaN where the norm is not finite.
  void clip_factor(ConstView squares, float clip, View factor);
  // Decoupled weight decay (Loshchilov and Hutter, 2019): m, v are the running means of g * factor and its square,
  // w -= lr * (m / bias1 / (sqrt(v / bias2) + eps) + weight_decay * w).  g, w, m, v: [n]; factor: [1];
  // rates: [3] = lr, bias1 = 1 - beta1^step, bias2 = 1 - beta2^step, which is all that changes from step to step.
  // rounded: [n] bf16 = w, where given. A factor of NaN changes nothing.
  void adamw(const AdamW& desc, ConstView factor, ConstView rates, ConstView g, View w, View m, View v, View rounded);

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
  virtual void do_prepare(ConstView weight, WeightUse use, View prepared);  // where prepared_bytes is not 0
  // from: none, or another than c, and then nothing accumulates
  virtual void do_gemm(const Gemm& desc, ConstView a, const Weight& b, ConstView from, View c) = 0;
  virtual void do_grouped_gemm(const RowsOf& x, const Weight& w, const ExpertRows& rows, View y) = 0;
  virtual void do_grouped_gemm_input(const RowsOf& dy, const Weight& w, const ExpertRows& rows, View dx) = 0;
  virtual void do_grouped_gemm_weight(const RowsOf& dy, const RowsOf& x, const ExpertRows& rows, View dw,
                                      bool accumulate) = 0;
  virtual void do_grouped_bias_forward(ConstView bias, ConstView row_scale, const ExpertRows& rows, Index first,
                                       View y) = 0;
  virtual void do_grouped_bias_backward(ConstView dy, ConstView bias, ConstView row_scale, const ExpertRows& rows,
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
  // As one operation after the other, unless a backend knows better.
  virtual void do_ffn_forward(const FfnActivation& desc, const RowsOf& x, const Weight& w, ConstView bias,
                              const ExpertRows& rows, ConstView row_scale, View h, View y);
  virtual void do_ffn_backward(const FfnActivation& desc, const RowsOf& dout, const Weight& w, const ExpertRows& rows,
                               ConstView h, ConstView row_scale, View dh, View drow_scale, View y);
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
  virtual void do_append_heads(ConstHeads x, ConstView offsets, Heads y) = 0;
  virtual void do_copy_heads(ConstHeads x, Heads y) = 0;
  virtual void do_sum_heads(ConstHeads x, Heads y) = 0;
  virtual void do_heads_gemm(WeightUse use, ConstHeads x, ConstView w, Heads y) = 0;
  virtual void do_draw(const Draw& desc, ConstView index, View x) = 0;
  virtual void do_jitter(const Draw& desc, ConstView index, ConstView x, bool accumulate, View y) = 0;
  virtual void do_sized_noise_forward(const Draw& desc, ConstView index, ConstView size, View x) = 0;
  virtual void do_sized_noise_backward(const Draw& desc, ConstView index, ConstView dx, ConstView size, View dsize) = 0;
  virtual void do_route_forward(const RouteDesc& desc, ConstView logits, ConstView bias, ConstView noise, View experts,
                                View weights, View counts, View probability, View z_squared) = 0;
  virtual void do_route_backward(const RouteDesc& desc, ConstView logits, ConstView experts, ConstView weights,
                                 ConstView dweights, ConstView dprobability, float z_factor, View dlogits) = 0;
  virtual void do_capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index segments,
                           Index num_experts, View keep) = 0;
  virtual void do_plan_sends(const ExpertSplit& split, ConstView experts, ConstView keep, View places, View tokens,
                             View slots, View counts, View kept) = 0;
  virtual void do_sort_assignments(ConstView places, Index first, View rows, View tokens, View slots, View offsets) = 0;
  virtual void do_balance(const BalanceDesc& desc, ConstView counts, ConstView scope_counts, ConstView probability,
                          ConstView kept, ConstView z_squared, View dprobability, View sums) = 0;
  virtual void do_gather_rows(ConstView x, ConstView index, View y) = 0;
  virtual void do_combine_rows(ConstView x, ConstView slots, ConstView from, View y) = 0;
  virtual void do_embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y) = 0;
  virtual void do_embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable) = 0;
  virtual void do_cross_entropy_forward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                                        View partial) = 0;
  virtual void do_cross_entropy_loss(ConstView partials, ConstView targets, View lse, View loss) = 0;
  virtual void do_loss_sums(ConstView losses, ConstView lse, ConstView targets, View sums) = 0;
  virtual void do_cross_entropy_backward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                                         ConstView lse, ConstView total, View dlogits) = 0;
  virtual void do_clip_factor(ConstView squares, float clip, View factor) = 0;
  virtual void do_adamw(const AdamW& desc, ConstView factor, ConstView rates, ConstView g, View w, View m, View v,
                        View rounded) = 0;

 private:
  Index reading_ = 0;  // bytes of the read that is under way
};

// make_cuda and make_backend throw NoBackend, which says what is missing, where there is none.
std::unique_ptr<Backend> make_cpu();
// local_rank is this process's number among those of its machine, which take its devices in turn. cuda_available says
// whether it would succeed.
std::unique_ptr<Backend> make_cuda(int local_rank = 0);
bool cuda_available();
// Counts what a device would do (kernels/dry/dry.h): in the place of `stands_for`, which must outlive it and whose needs of
// memory it has.
std::unique_ptr<Backend> make_dry(const Backend* stands_for = nullptr);
std::unique_ptr<Backend> make_backend(std::string_view name, int local_rank = 0);  // auto|cpu|cuda

}  // namespace sy
