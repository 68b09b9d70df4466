// Measures every operation of kernels/device.h at the sizes of a layer. FLOPs and bytes are those
// that the dry device counts.
#include <cmath>

#include "kernels/dry/dry.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/bias.h"
#include "kernels/ops/capacity.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/grouped_gemm.h"
#include "kernels/ops/load_balancing.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/qk_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/route.h"
#include "tests/bench/gpu/attention.h"

namespace sy::bench {
namespace {

// T: tokens. R: routed rows. qkv: columns of q, k and v side by side. n: tokens per chunk of
// logits.
struct Sizes {
  Index B, S, D, F, E, k, H, K, hd, V;
  Index T() const { return B * S; }
  Index R() const { return T() * k; }
  Index qkv() const { return (H + 2 * K) * hd; }
  Index n(const Device& b) const { return std::min(T(), std::clamp<Index>(b.logits_chunk() / V, 64, 4096)); }
};

constexpr Sizes mixtral = {2, 4096, 4096, 14336, 8, 2, 32, 8, 128, 32768};
constexpr Sizes tiny = {2, 24, 64, 96, 4, 2, 2, 1, 32, 128};

struct Operation {
  std::string what;
  std::function<Run(Operands& o)> prepare;  // the operands must outlive the Run
};

void add_products(std::vector<Operation>& all, const Sizes& s) {
  // c: [m, n], summed over q.
  struct Form {
    bool transpose_a = false, transpose_b = false, accumulate = false;
  };
  const auto add_gemm = [&](const char* what, Form form, auto sizes_on, bool f32_result) {
    all.push_back({std::string("gemm, ") + what, [=](Operands& o) -> Run {
                     const auto [m, n, q] = sizes_on(o.b);
                     const View a = o.random(form.transpose_a ? Shape{q, m} : Shape{m, q});
                     const View b = o.random(form.transpose_b ? Shape{n, q} : Shape{q, n});
                     const View c = f32_result ? o.zeros({m, n}, DType::f32) : o.zeros({m, n});
                     return [&o, form, a, b, c] {
                       run(o.b, ops::Gemm{.a = a,
                                          .b = b,
                                          .transpose_a = form.transpose_a,
                                          .transpose_b = form.transpose_b,
                                          .accumulate = form.accumulate,
                                          .c = c});
                     };
                   }});
  };
  using Size = std::array<Index, 3>;
  const Form forward = {.transpose_b = true}, input = {}, weight = {.transpose_a = true, .accumulate = true};
  const auto fixed = [](Index m, Index n, Index q) { return [=](const Device&) { return Size{m, n, q}; }; };
  add_gemm("qkv", forward, fixed(s.T(), s.qkv(), s.D), false);
  add_gemm("qkv, input gradient", input, fixed(s.T(), s.D, s.qkv()), false);
  add_gemm("qkv, weight gradient", weight, fixed(s.qkv(), s.D, s.T()), true);
  add_gemm("attention output", forward, fixed(s.T(), s.D, s.H * s.hd), false);
  add_gemm("router", forward, fixed(s.T(), s.E, s.D), true);
  add_gemm(
      "logits", forward,
      [s](const Device& b) {
        return Size{s.n(b), s.V, s.D};
      },
      true);
  add_gemm(
      "logits, input gradient", input,
      [s](const Device& b) {
        return Size{s.n(b), s.D, s.V};
      },
      false);
  add_gemm(
      "logits, weight gradient", weight,
      [s](const Device& b) {
        return Size{s.V, s.D, s.n(b)};
      },
      true);

  // w: [experts, n, q] of both projections of the experts, and of eight times as many experts of an
  // eighth of the width.
  struct Matrices {
    const char* what;
    Index experts, n, q;
  };
  for (const Matrices& m :
       {Matrices{"up", s.E, 2 * s.F, s.D}, Matrices{"down", s.E, s.D, s.F},
        Matrices{"narrow up", 8 * s.E, s.F / 4, s.D}, Matrices{"narrow down", 8 * s.E, s.D, s.F / 8}}) {
    all.push_back({fmt::format("grouped_gemm, {}", m.what), [s, m](Operands& o) -> Run {
                     const View x = o.random({s.R(), m.q}), w = o.random({m.experts, m.n, m.q});
                     const View y = o.zeros({s.R(), m.n});
                     const GroupOffsets offsets = o.groups(s.R(), m.experts);
                     return [&o, x, w, offsets, y] {
                       run(o.b, ops::GroupedGemm{.x = x, .w = w, .groups = offsets, .y = y});
                     };
                   }});
    all.push_back({fmt::format("grouped_gemm_dgrad, {}", m.what), [s, m](Operands& o) -> Run {
                     const View dy = o.random({s.R(), m.n}), w = o.random({m.experts, m.n, m.q});
                     const View dx = o.zeros({s.R(), m.q});
                     const GroupOffsets offsets = o.groups(s.R(), m.experts);
                     return [&o, dy, w, offsets, dx] {
                       run(o.b, ops::GroupedGemmDgrad{.dy = dy, .w = w, .groups = offsets, .dx = dx});
                     };
                   }});
    all.push_back({fmt::format("grouped_gemm_wgrad, {}", m.what), [s, m](Operands& o) -> Run {
                     const View dy = o.random({s.R(), m.n}), x = o.random({s.R(), m.q});
                     const View dw = o.zeros({m.experts, m.n, m.q}, DType::f32);
                     const GroupOffsets offsets = o.groups(s.R(), m.experts);
                     return [&o, dy, x, offsets, dw] {
                       run(o.b, ops::GroupedGemmWgrad{.dy = dy, .x = x, .groups = offsets, .dw = dw});
                     };
                   }});
  }
}

void add_elementwise(std::vector<Operation>& all, const Sizes& s) {
  all.push_back({"fill", [s](Operands& o) -> Run {
                   const View x = o.zeros({s.F, s.D}, DType::f32);
                   return [&o, x] { run(o.b, ops::Fill{.x = x, .value = 0}); };
                 }});
  all.push_back({"copy", [s](Operands& o) -> Run {
                   const View x = o.random({s.T(), s.D}), y = o.zeros({s.T(), s.D});
                   return [&o, x, y] { run(o.b, ops::Copy{.x = x, .y = y}); };
                 }});
  all.push_back({"convert", [s](Operands& o) -> Run {
                   const View x = o.random({s.F, s.D}, DType::f32), y = o.zeros({s.F, s.D}, DType::bf16);
                   return [&o, x, y] { run(o.b, ops::Convert{.x = x, .y = y}); };
                 }});
  all.push_back({"add", [s](Operands& o) -> Run {
                   const View x = o.random({s.T(), s.D}), y = o.zeros({s.T(), s.D});
                   return [&o, x, y] { run(o.b, ops::Add{.x = x, .y = y}); };
                 }});
  all.push_back({"sum_squares", [s](Operands& o) -> Run {
                   const View x = o.f32({s.F, s.D}), sum = o.zeros({1}, DType::f64);
                   return [&o, x, sum] { run(o.b, ops::SumSquares{.x = x, .out = sum}); };
                 }});
  all.push_back({"bias_forward", [s](Operands& o) -> Run {
                   const View bias = o.random({s.qkv()}), y = o.zeros({s.T(), s.qkv()});
                   return [&o, bias, y] { run(o.b, ops::BiasForward{.bias = bias, .y = y}); };
                 }});
  all.push_back({"bias_backward", [s](Operands& o) -> Run {
                   const View dy = o.random({s.T(), s.qkv()}), dbias = o.f32({s.qkv()});
                   return [&o, dy, dbias] { run(o.b, ops::BiasBackward{.dy = dy, .dbias = dbias}); };
                 }});
  all.push_back({"norm_forward", [s](Operands& o) -> Run {
                   const View x = o.random({s.T(), s.D}), w = o.random({s.D}), y = o.zeros({s.T(), s.D});
                   const View stats = o.f32({s.T(), 2});
                   return [&o, x, w, y, stats] {
                     run(o.b, ops::NormForward{.x = x, .weight = w, .y = y, .moments = stats});
                   };
                 }});
  all.push_back({"norm_backward", [s](Operands& o) -> Run {
                   const View dy = o.random({s.T(), s.D}), x = o.random({s.T(), s.D}), w = o.random({s.D});
                   const View y = o.zeros({s.T(), s.D}), stats = o.f32({s.T(), 2}), dw = o.f32({s.D});
                   run(o.b, ops::NormForward{.x = x, .weight = w, .y = y, .moments = stats});
                   return [&o, dy, x, w, stats, y, dw] {
                     run(o.b,
                         ops::NormBackward{.dy = dy, .x = x, .weight = w, .moments = stats, .dx = y, .dweight = dw});
                   };
                 }});
  all.push_back({"activation_forward", [s](Operands& o) -> Run {
                   const View h = o.random({s.R(), 2 * s.F}), scale = o.f32({s.R()}), y = o.zeros({s.R(), s.F});
                   return [&o, h, scale, y] { run(o.b, ops::ActivationForward{.h = h, .row_scale = scale, .y = y}); };
                 }});
  all.push_back({"activation_backward", [s](Operands& o) -> Run {
                   const View dy = o.random({s.R(), s.F}), h = o.random({s.R(), 2 * s.F}), scale = o.f32({s.R()});
                   const View dh = o.zeros({s.R(), 2 * s.F}), dscale = o.f32({s.R()});
                   return [&o, dy, h, scale, dh, dscale] {
                     run(o.b,
                         ops::ActivationBackward{.dy = dy, .h = h, .row_scale = scale, .dh = dh, .drow_scale = dscale});
                   };
                 }});
  all.push_back({"adamw", [s](Operands& o) -> Run {
                   const Index n = s.F * s.D;
                   const View g = o.f32({n}), w = o.f32({n}), m = o.zeros({n}, DType::f32);
                   const View v = o.zeros({n}, DType::f32);
                   // f32 weights have no rounded copy.
                   const View rounded = o.compute == DType::bf16 ? o.zeros({n}) : View{};
                   const View factor = o.zeros({1}, DType::f32), step_scalars = o.zeros({3}, DType::f32);
                   run(o.b, ops::Fill{.x = factor, .value = 1});
                   run(o.b, ops::Fill{.x = step_scalars, .value = 1e-4f});
                   const ops::AdamW update{.coefficient = factor,
                                           .step_scalars = step_scalars,
                                           .g = g,
                                           .beta1 = 0.9f,
                                           .beta2 = 0.95f,
                                           .eps = 1e-8f,
                                           .weight_decay = 0.1f,
                                           .w = w,
                                           .m = m,
                                           .v = v,
                                           .rounded = rounded};
                   return [&o, update] { run(o.b, update); };
                 }});
  all.push_back({"clip_coefficient", [](Operands& o) -> Run {
                   const View squares = o.zeros({1}, DType::f64), factor = o.f32({1});
                   return [&o, squares, factor] {
                     run(o.b, ops::ClipCoefficient{.squares = squares, .clip = 1, .coefficient = factor});
                   };
                 }});
}

void add_attention(std::vector<Operation>& all, const Sizes& s) {
  // Rotations by arbitrary angles.
  const auto table = [s](Operands& o) {
    std::vector<float> rotations(s.S * s.hd);
    for (Index i = 0; i < s.S * s.hd / 2; ++i) {
      rotations[2 * i] = std::cos(static_cast<float>(i));
      rotations[2 * i + 1] = std::sin(static_cast<float>(i));
    }
    const View made = o.zeros({s.S, s.hd / 2, 2}, DType::f32);
    o.b.to_device(rotations.data(), made);
    return made;
  };
  const Shape qkv_rows = {s.T(), s.H + 2 * s.K, s.hd};
  all.push_back({"rope", [s, table, qkv_rows](Operands& o) -> Run {
                   const View x = o.random(qkv_rows), rotations = table(o), positions = o.below(s.T(), s.S);
                   return [&o, s, x, positions, rotations] {
                     run(o.b, ops::Rope{.x = x, .heads = s.H + s.K, .positions = positions, .table = rotations});
                   };
                 }});
  const HeadQkNorm qk_norm = {s.H, s.K, 1e-5f};
  all.push_back(
      {"head_qk_norm_forward", [s, table, qkv_rows, qk_norm](Operands& o) -> Run {
         const View x = o.random(qkv_rows), weight = o.random({2, s.hd}), y = o.zeros(qkv_rows);
         const View rotations = table(o), positions = o.below(s.T(), s.S), inverse = o.f32({s.T(), s.H + s.K});
         return [&o, qk_norm, x, weight, positions, rotations, y, inverse] {
           run(o.b, ops::HeadQkNormForward{.x = x,
                                           .weight = weight,
                                           .positions = positions,
                                           .table = rotations,
                                           .desc = qk_norm,
                                           .y = y,
                                           .inverse = inverse});
         };
       }});
  all.push_back(
      {"head_qk_norm_backward", [s, table, qkv_rows, qk_norm](Operands& o) -> Run {
         const View dy = o.random(qkv_rows), x = o.random(qkv_rows), weight = o.random({2, s.hd});
         const View rotations = table(o), positions = o.below(s.T(), s.S), inverse = o.f32({s.T(), s.H + s.K});
         const View dx = o.zeros(qkv_rows), dweight = o.f32({2, s.hd});
         return [&o, qk_norm, dy, x, weight, inverse, positions, rotations, dx, dweight] {
           run(o.b, ops::HeadQkNormBackward{.dy = dy,
                                            .x = x,
                                            .weight = weight,
                                            .inverse = inverse,
                                            .positions = positions,
                                            .table = rotations,
                                            .desc = qk_norm,
                                            .dx = dx,
                                            .dweight = dweight});
         };
       }});
  const AttentionSizes heads = {s.B, s.S, s.H, s.K, s.hd};
  all.push_back({"attention_forward", [heads](Operands& o) { return attention_forward(o, heads); }});
  all.push_back({"attention_backward", [heads](Operands& o) { return attention_backward(o, heads); }});
}

// Results of a router: the operands of the operations after it.
struct Routed {
  Index ranks;  // largest number of ranks that receive a token
  RouteDesc desc;
  View logits, experts, weights, counts, probability, z_squared, dispatch_mask, physical_experts, copies,
      copies_of_tokens, layout_counts, tokens_per_expert, assignments, tokens, row_id_map, offsets;

  Routed(Operands& o, const Sizes& s)
      : ranks(std::min<Index>(8, s.E)),
        desc{.top_k = static_cast<int>(s.k)},
        logits(o.f32({s.T(), s.E})),
        experts(o.i32({s.T(), s.k})),
        weights(o.f32({s.T(), s.k})),
        counts(o.i32({s.B, s.E})),
        probability(o.f32({s.B, s.E})),
        z_squared(o.zeros({1}, DType::f64)),
        dispatch_mask(o.i32({s.T(), s.k})),
        physical_experts(o.i32({s.T(), s.k})),
        copies(o.i32({s.T() * std::min(s.k, ranks)})),
        copies_of_tokens(o.i32({s.T(), std::min(s.k, ranks)})),
        layout_counts(o.i32({ranks, 1 + s.E / ranks})),
        tokens_per_expert(o.i32({s.E})),
        assignments(o.i32({s.R()})),
        tokens(o.i32({s.R()})),
        row_id_map(o.i32({s.T(), s.k})),
        offsets(o.i32({s.E + 1})) {
    route(o.b);
    apply_capacity(o.b, 0);
    build_layout(o.b);
    build_permutation(o.b);
  }
  void route(Device& b) const {
    run(b, ops::RouteForward{.logits = logits,
                             .desc = desc,
                             .experts = experts,
                             .weights = weights,
                             .counts = counts,
                             .probability = probability,
                             .z_squared = z_squared});
  }
  void apply_capacity(Device& b, Index capacity) const {
    run(b, ops::ApplyCapacity{.experts = experts,
                              .weights = weights,
                              .segments = counts.dim(0),
                              .num_experts = counts.dim(1),
                              .desc = {.capacity = capacity},
                              .dispatch_mask = dispatch_mask});
  }
  void build_layout(Device& b) const {
    run(b, ops::DispatchLayout{.experts = experts,
                               .dispatch_mask = dispatch_mask,
                               .partition = {ranks, 1},
                               .physical_experts = physical_experts,
                               .tokens = copies,
                               .row_id_map = copies_of_tokens,
                               .counts = layout_counts,
                               .tokens_per_expert = tokens_per_expert});
  }
  void build_permutation(Device& b) const {
    run(b, ops::BuildPermutation{.physical_experts = physical_experts,
                                 .assignments = assignments,
                                 .tokens = tokens,
                                 .row_id_map = row_id_map,
                                 .offsets = offsets});
  }
};

void add_routing(std::vector<Operation>& all, const Sizes& s) {
  all.push_back({"route_forward", [s](Operands& o) -> Run { return [&o, r = Routed(o, s)] { r.route(o.b); }; }});
  all.push_back({"route_backward", [s](Operands& o) -> Run {
                   const Routed r(o, s);
                   const View dweights = o.f32({s.T(), s.k}), dprobability = o.f32({s.B, s.E});
                   const View dlogits = o.zeros({s.T(), s.E});
                   return [=, &o] {
                     run(o.b, ops::RouteBackward{.logits = r.logits,
                                                 .experts = r.experts,
                                                 .weights = r.weights,
                                                 .dweights = dweights,
                                                 .dprobability = dprobability,
                                                 .desc = r.desc,
                                                 .z_factor = 1e-3f,
                                                 .dlogits = dlogits});
                   };
                 }});
  all.push_back({"apply_capacity, factor 1.25", [s](Operands& o) -> Run {
                   return [&o, r = Routed(o, s), n = s.S * s.k * 5 / 4 / s.E] { r.apply_capacity(o.b, n); };
                 }});
  all.push_back({"dispatch_layout, up to 8 ranks",
                 [s](Operands& o) -> Run { return [&o, r = Routed(o, s)] { r.build_layout(o.b); }; }});
  all.push_back(
      {"build_permutation", [s](Operands& o) -> Run { return [&o, r = Routed(o, s)] { r.build_permutation(o.b); }; }});
  all.push_back({"load_balancing_loss", [s](Operands& o) -> Run {
                   const Routed r(o, s);
                   const View dprobability = o.f32({1, s.B, s.E}), sums = o.zeros({1, 3 * s.E + 2}, DType::f64);
                   const View counts = r.counts.reshape({1, s.B, s.E}),
                              probability = r.probability.reshape({1, s.B, s.E}),
                              tokens_per_expert = r.tokens_per_expert.reshape({1, s.E});
                   const LoadBalancingDesc desc = {.factor = 1e-2, .z_factor = 1e-3};
                   return [=, &o] {
                     run(o.b, ops::LoadBalancingLoss{.counts = counts,
                                                     .scope_counts = counts.reshape({1, 1, s.B, s.E}),
                                                     .probability = probability,
                                                     .tokens_per_expert = tokens_per_expert,
                                                     .z_squared = r.z_squared,
                                                     .desc = desc,
                                                     .dprobability = dprobability,
                                                     .sums = sums});
                   };
                 }});
  all.push_back({"permute", [s](Operands& o) -> Run {
                   const Routed r(o, s);
                   const View x = o.random({s.T(), s.D}), y = o.zeros({s.R(), s.D});
                   return [=, &o] { run(o.b, ops::Permute{.x = x, .index = r.tokens, .y = y}); };
                 }});
  all.push_back({"unpermute", [s](Operands& o) -> Run {
                   const Routed r(o, s);
                   const View x = o.random({s.R(), s.D}), y = o.zeros({s.T(), s.D});
                   return
                       [=, &o] { run(o.b, ops::Unpermute{.x = x, .row_id_map = r.row_id_map, .addend = y, .y = y}); };
                 }});
}

void add_ends(std::vector<Operation>& all, const Sizes& s) {
  all.push_back({"embedding_forward", [s](Operands& o) -> Run {
                   const View ids = o.below(s.T(), s.V), table = o.random({s.V, s.D}), y = o.zeros({s.T(), s.D});
                   return [=, &o] { run(o.b, ops::EmbeddingForward{.ids = ids, .table = table, .y = y}); };
                 }});
  all.push_back({"embedding_backward", [s](Operands& o) -> Run {
                   const View ids = o.below(s.T(), s.V), dy = o.random({s.T(), s.D});
                   const View dtable = o.zeros({s.V, s.D}, DType::f32);
                   return [=, &o] { run(o.b, ops::EmbeddingBackward{.ids = ids, .dy = dy, .dtable = dtable}); };
                 }});
  all.push_back({"cross_entropy_forward", [s](Operands& o) -> Run {
                   const Index n = s.n(o.b);
                   const View logits = o.f32({n, s.V}), targets = o.below(n, s.V), stats = o.f32({n, 3});
                   return [=, &o] {
                     run(o.b,
                         ops::CrossEntropyForward{.logits = logits, .targets = targets, .desc = {}, .partial = stats});
                   };
                 }});
  all.push_back({"cross_entropy_loss", [s](Operands& o) -> Run {
                   const Index n = s.n(o.b);
                   const View logits = o.f32({n, s.V}), targets = o.below(n, s.V), stats = o.f32({n, 3});
                   const View lse = o.f32({n}), loss = o.f32({n});
                   run(o.b,
                       ops::CrossEntropyForward{.logits = logits, .targets = targets, .desc = {}, .partial = stats});
                   return [=, &o] {
                     run(o.b, ops::CrossEntropyLoss{
                                  .partials = stats.reshape({1, n, 3}), .targets = targets, .lse = lse, .loss = loss});
                   };
                 }});
  all.push_back({"loss_sums", [s](Operands& o) -> Run {
                   const View losses = o.f32({s.T()}), lse = o.f32({s.T()}), targets = o.below(s.T(), s.V);
                   const View sums = o.zeros({2}, DType::f64);
                   return [=, &o] {
                     run(o.b, ops::LossSums{.losses = losses, .lse = lse, .targets = targets, .sums = sums});
                   };
                 }});
  all.push_back(
      {"cross_entropy_backward", [s](Operands& o) -> Run {
         const Index n = s.n(o.b);
         const View logits = o.f32({n, s.V}), targets = o.below(n, s.V), lse = o.zeros({n}, DType::f32);
         const View dlogits = o.zeros({n, s.V}), total = o.zeros({1}, DType::f64);
         const double tokens = 1e4;
         o.b.to_device(&tokens, total);
         // The value is that of normal logits.
         run(o.b, ops::Fill{.x = lse, .value = std::log(static_cast<float>(s.V)) + 0.5f});
         return [=, &o] {
           run(o.b,
               ops::CrossEntropyBackward{
                   .logits = logits, .targets = targets, .lse = lse, .total = total, .desc = {}, .dlogits = dlogits});
         };
       }});
}

}  // namespace

void measure_operations(const Setup& setup, std::vector<Section>& sections) {
  const Sizes& s = setup.small ? tiny : mixtral;
  std::vector<Operation> all;
  add_products(all, s);
  add_attention(all, s);
  add_elementwise(all, s);
  add_routing(all, s);
  add_ends(all, s);

  const std::unique_ptr<Device> device = setup.make(), dry = make_dry(device.get());
  sections.push_back(
      {"Operations",
       fmt::format("{}, {} x {} tokens, d_model {}, {} heads and {} kv heads of {}, {} experts of {}, top {}, "
                   "vocabulary {} ({} tokens at once).\nSmall operands stay in the cache, above the roof of "
                   "memory. Short operations take as long as their launch.",
                   info(setup.dtype).name, s.B, s.S, s.D, s.H, s.K, s.hd, s.E, s.F, s.k, s.V, s.n(*device)),
       {}});
  for (const Operation& operation : all) {
    Line line{.what = operation.what};
    {
      Operands operands(*dry, setup.dtype);
      const Run run = operation.prepare(operands);
      dry_counts(*dry) = {};
      run();
      line.flops = dry_counts(*dry).flops;
      line.bytes = dry_counts(*dry).bytes;
    }
    Operands operands(*device, setup.dtype);
    line.seconds = measure(*device, setup, operation.prepare(operands));
    fmt::print(stderr, "{}: {:.4g} ms\n", line.what, line.seconds.median * 1e3);
    sections.back().lines.push_back(line);
  }
}

}  // namespace sy::bench
