// Cases of norms, QK-norms and rotary positions (op_case.h).
#pragma once

#include <cmath>

#include "kernels/ops/norm.h"
#include "kernels/ops/qk_norm.h"
#include "kernels/ops/rope.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

struct NormForward : OpCase {
  NormDesc desc;
  Index t, d;
  NormForward(NormDesc d_, Rows s, bool biased, double deviation) : desc(d_), t(s.t), d(s.d) {
    note = fmt::format("kind {}, offset {}, inputs of size {}", static_cast<int>(desc.kind), desc.offset, deviation);
    in("x", {t, d}, normal("x", {t, d}, deviation));
    in("weight", {d});
    in_if(biased, "bias", {d});
    out("y", {t, d});
    out("moments", {t, 2}, DType::f32);
    tolerance = 3e-6;
  }
  void run(Device& b) override {
    ops::run(b, ops::NormForward{.x = at("x"),
                                 .weight = at("weight"),
                                 .bias = at("bias"),
                                 .desc = desc,
                                 .y = at("y"),
                                 .moments = at("moments")});
  }
  void expect(Values& v) override {
    if (t * d == 0) return;
    const ref::Norm want = ref::norm(desc, t, d, v["x"], v["weight"], v["bias"]);
    v["y"] = want.y;
    v["moments"] = want.moments;
  }
};

struct NormBackward : OpCase {
  NormDesc desc;
  Index t, d;
  NormBackward(NormDesc d_, Rows s, bool biased) : desc(d_), t(s.t), d(s.d) {
    note = fmt::format("kind {}, offset {}", static_cast<int>(desc.kind), desc.offset);
    in("x", {t, d});
    in("weight", {d});
    in("dy", {t, d});
    if (biased) hidden("bias", {d});
    in("moments", {t, 2},
       t * d > 0 ? ref::norm(desc, t, d, values()["x"], values()["weight"], {}).moments : Numbers(t * 2), DType::f32);
    accumulate_gradient("x", {t, d});
    accumulate_gradient("weight", {d}, DType::f32);
    if (biased) {
      accumulate_gradient("bias", {d}, DType::f32);
    }
  }
  void run(Device& b) override {
    ops::run(b, ops::NormBackward{.dy = at("dy"),
                                  .x = at("x"),
                                  .weight = at("weight"),
                                  .moments = at("moments"),
                                  .desc = desc,
                                  .dx = at("dx"),
                                  .dweight = at("dweight"),
                                  .dbias = at("dbias")});
  }
  double loss(Values& v) override { return ref::dot(v["dy"], ref::norm(desc, t, d, v["x"], v["weight"], v["bias"]).y); }
};

struct RopeCase : OpCase {
  Index all_heads, hd, heads, half;
  bool inverse;
  RopePairs pairs;
  RopeCase(Index t, Index all, Index width, Index turned, Index half_, bool backward, RopePairs p)
      : all_heads(all), hd(width), heads(turned), half(half_), inverse(backward), pairs(p) {
    note = fmt::format("{} heads, inverse {}, pairs {}", turned, backward, static_cast<int>(pairs));
    constexpr Index positions = 11;
    Numbers table(positions * half * 2);
    for (Index position = 0; position < positions; ++position)
      for (Index i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(position) * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
        table[(position * half + i) * 2] = std::cos(angle);
        table[(position * half + i) * 2 + 1] = std::sin(angle);
      }
    in("positions", {t}, whole("positions", {t}, 0, positions), DType::i32);
    in("table", {positions, half, 2}, table, DType::f32);
    in_out("y", {t, all, width});
    if (!backward) return;
    hidden("x", {t, all, width});  // y is the gradient with respect to the rotated x
    gradients = {{"y", "x"}};
  }
  void run(Device& b) override {
    ops::run(b, ops::Rope{.x = at("y"),
                          .heads = heads,
                          .positions = at("positions"),
                          .table = at("table"),
                          .inverse = inverse,
                          .pairs = pairs});
  }
  void expect(Values& v) override {
    v["y"] = ref::rope(all_heads, hd, heads, half, v["positions"], v["table"], inverse, v["y"], pairs);
  }
  double loss(Values& v) override {
    return ref::dot(v["y"], ref::rope(all_heads, hd, heads, half, v["positions"], v["table"], false, v["x"], pairs));
  }
};

struct HeadQkNormCase : OpCase {
  HeadQkNorm desc;
  Index t, all, hd, half;
  HeadQkNormCase(Index t_, HeadQkNorm d, Index others, Index width, Index half_)
      : desc(d), t(t_), all(d.q_heads + d.k_heads + others), hd(width), half(half_) {
    note = fmt::format("{} queries, {} keys, pairs {}, kind {}", d.q_heads, d.k_heads, static_cast<int>(d.pairs),
                       static_cast<int>(d.kind));
    in("x", {t, all, hd});
    in("weight", {d.weights(), hd});
    in("positions", {t}, whole("positions", {t}, 0, 7), DType::i32);
    Numbers table;
    for (Index i = 0; i < 7 * half; ++i)
      table.insert(table.end(), {std::cos(static_cast<double>(i)), std::sin(static_cast<double>(i))});
    if (half > 0) in("table", {7, half, 2}, table, DType::f32);
    tolerance = gradient_tolerance = 1e-5;
  }
  ref::HeadQkNormed forward(Values& v) const {
    return ref::head_qk_norm(desc, all, hd, half, v["weight"], v["positions"], half > 0 ? v["table"] : Numbers{},
                             v["x"]);
  }
};

struct HeadQkNormForward : HeadQkNormCase {
  HeadQkNormForward(Index t_, HeadQkNorm d, Index others, Index width, Index half_)
      : HeadQkNormCase(t_, d, others, width, half_) {
    out("y", {t, all, hd});
    out("inverse", {t, d.q_heads + d.k_heads}, DType::f32);
  }
  void run(Device& b) override {
    ops::run(b, ops::HeadQkNormForward{.x = at("x"),
                                       .weight = at("weight"),
                                       .positions = at("positions"),
                                       .table = at("table"),
                                       .desc = desc,
                                       .y = at("y"),
                                       .inverse = at("inverse")});
  }
  void expect(Values& v) override {
    const ref::HeadQkNormed want = forward(v);
    v["y"] = want.y;
    v["inverse"] = want.inverse;
  }
};

struct HeadQkNormBackward : HeadQkNormCase {
  HeadQkNormBackward(Index t_, HeadQkNorm d, Index others, Index width, Index half_)
      : HeadQkNormCase(t_, d, others, width, half_) {
    in("inverse", {t, d.q_heads + d.k_heads}, forward(values()).inverse, DType::f32);
    in("dy", {t, all, hd});
    out_gradient("x", {t, all, hd});
    accumulate_gradient("weight", {desc.weights(), hd}, DType::f32);
  }
  void run(Device& b) override {
    ops::run(b, ops::HeadQkNormBackward{.dy = at("dy"),
                                        .x = at("x"),
                                        .weight = at("weight"),
                                        .inverse = at("inverse"),
                                        .positions = at("positions"),
                                        .table = at("table"),
                                        .desc = desc,
                                        .dx = at("dx"),
                                        .dweight = at("dweight")});
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v).y); }
};

struct ProjectionQkNormCase : OpCase {
  ProjectionQkNorm desc;
  Index t, row;
  // ranks: number of ranks that share the heads.
  ProjectionQkNormCase(Index t_, Index q, Index k, Index others, Index ranks)
      : desc{q, k, ranks * q, ranks * k, 1e-5f, ranks > 1 ? 1.0f : 0.0f}, t(t_), row(q + k + others) {
    note = fmt::format("{} queries, {} keys, {} ranks", q, k, ranks);
    in("x", {t, row});
    in("weight", {q + k});
    tolerance = gradient_tolerance = 1e-5;
    if (ranks == 1) return;
    Numbers elsewhere = normal("others", {t, 2});
    for (double& x : elsewhere) x = std::abs(x) * static_cast<double>((ranks - 1) * q);
    in("others", {t, 2}, elsewhere, DType::f32);
  }
  // Sums of squares of this rank and the others.
  Numbers squares(Values& v) const {
    Numbers sums = ref::projection_sums(desc, row, v["x"], v["x"]);
    for (std::size_t i = 0; i < v["others"].size(); ++i) sums[i] += v["others"][i];
    return sums;
  }
  Numbers forward(Values& v) const { return ref::projection_qk_norm(desc, row, v["weight"], v["others"], v["x"]); }
};

struct ProjectionQkNormSums : ProjectionQkNormCase {
  ProjectionQkNormSums(Index t_, Index q, Index k, Index others, Index ranks)
      : ProjectionQkNormCase(t_, q, k, others, ranks) {
    in("other_x", {t, row});
    out("sums", {t, 2}, DType::f32);
  }
  void run(Device& device) override {
    ops::run(device, ops::ProjectionQkNormSums{.x = at("x"), .y = at("other_x"), .desc = desc, .sums = at("sums")});
  }
  void expect(Values& v) override { v["sums"] = ref::projection_sums(desc, row, v["x"], v["other_x"]); }
};

struct ProjectionQkNormForward : ProjectionQkNormCase {
  ProjectionQkNormForward(Index t_, Index q, Index k, Index others, Index ranks)
      : ProjectionQkNormCase(t_, q, k, others, ranks) {
    in("squares", {t, 2}, squares(values()), DType::f32);
    out("y", {t, row});
  }
  void run(Device& device) override {
    ops::run(device, ops::ProjectionQkNormForward{
                         .x = at("x"), .weight = at("weight"), .squares = at("squares"), .desc = desc, .y = at("y")});
  }
  void expect(Values& v) override { v["y"] = forward(v); }
};

// Backward on a rank whose peers contribute no gradients.
struct ProjectionQkNormBackward : ProjectionQkNormCase {
  ProjectionQkNormBackward(Index t_, Index q, Index k, Index others, Index ranks)
      : ProjectionQkNormCase(t_, q, k, others, ranks) {
    in("dy", {t, row});
    in("squares", {t, 2}, squares(values()), DType::f32);
    in("products", {t, 2}, ref::projection_sums(desc, row, values()["dy"], forward(values())), DType::f32);
    out_gradient("x", {t, row});
    accumulate_gradient("weight", {q + k}, DType::f32);
  }
  void run(Device& b) override {
    ops::run(b, ops::ProjectionQkNormBackward{.dy = at("dy"),
                                              .x = at("x"),
                                              .weight = at("weight"),
                                              .squares = at("squares"),
                                              .products = at("products"),
                                              .desc = desc,
                                              .dx = at("dx"),
                                              .dweight = at("dweight")});
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v)); }
};

}  // namespace sy::numerics
