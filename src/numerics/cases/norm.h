// Cases of norms, QK-norms and rotary positions (op_case.h).
#pragma once

#include <cmath>

#include "kernels/ops/norm.h"
#include "kernels/ops/qk_norm.h"
#include "kernels/ops/rope.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

struct NormForward : OperationCase<ops::NormForward> {
  Index t, d;
  NormForward(NormDesc desc, Rows s, bool biased, double deviation) : t(s.t), d(s.d) {
    op.desc = desc;
    note = fmt::format("kind {}, offset {}, inputs of size {}", static_cast<int>(desc.kind), desc.offset, deviation);
    in({"x", op.x}, {t, d}, normal("x", {t, d}, deviation));
    in({"weight", op.weight}, {d});
    in_if(biased, {"bias", op.bias}, {d});
    out({"y", op.y}, {t, d});
    out({"moments", op.moments}, {t, 2}, DType::f32);
    tolerance = 3e-6;
  }
  void expect(Values& v) override {
    if (t * d == 0) return;
    const ref::Norm want = ref::norm(op.desc, t, d, v["x"], v["weight"], v["bias"]);
    v["y"] = want.y;
    v["moments"] = want.moments;
  }
};

struct NormBackward : OperationCase<ops::NormBackward> {
  Index t, d;
  NormBackward(NormDesc desc, Rows s, bool biased) : t(s.t), d(s.d) {
    op.desc = desc;
    note = fmt::format("kind {}, offset {}", static_cast<int>(desc.kind), desc.offset);
    in({"x", op.x}, {t, d});
    in({"weight", op.weight}, {d});
    in({"dy", op.dy}, {t, d});
    if (biased) hidden("bias", {d});
    in({"moments", op.moments}, {t, 2},
       t * d > 0 ? ref::norm(desc, t, d, values()["x"], values()["weight"], {}).moments : Numbers(t * 2), DType::f32);
    accumulate_gradient({"x", op.dx}, {t, d});
    accumulate_gradient({"weight", op.dweight}, {d}, DType::f32);
    if (biased) accumulate_gradient({"bias", op.dbias}, {d}, DType::f32);
  }
  double loss(Values& v) override {
    return ref::dot(v["dy"], ref::norm(op.desc, t, d, v["x"], v["weight"], v["bias"]).y);
  }
};

struct RopeCase : OperationCase<ops::Rope> {
  Index all_heads, hd, half;
  RopeCase(Index t, Index all, Index width, Index heads, Index half_, bool backward, RopePairs pairs)
      : all_heads(all), hd(width), half(half_) {
    op.heads = heads;
    op.inverse = backward;
    op.pairs = pairs;
    note = fmt::format("{} heads, inverse {}, pairs {}", heads, backward, static_cast<int>(pairs));
    constexpr Index positions = 11;
    Numbers table(positions * half * 2);
    for (Index position = 0; position < positions; ++position)
      for (Index i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(position) * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
        table[(position * half + i) * 2] = std::cos(angle);
        table[(position * half + i) * 2 + 1] = std::sin(angle);
      }
    in({"positions", op.positions}, {t}, whole("positions", {t}, 0, positions), DType::i32);
    in({"table", op.table}, {positions, half, 2}, table, DType::f32);
    in_out({"y", op.x}, {t, all, width});
    if (!backward) return;
    hidden("x", {t, all, width});  // y is the gradient with respect to the rotated x
    gradients = {{"y", "x"}};
  }
  Numbers rotated(Values& v, const Numbers& x, bool inverse) const {
    return ref::rope(all_heads, hd, op.heads, half, v["positions"], v["table"], inverse, x, op.pairs);
  }
  void expect(Values& v) override { v["y"] = rotated(v, v["y"], op.inverse); }
  double loss(Values& v) override { return ref::dot(v["y"], rotated(v, v["x"], false)); }
};

template <class Operation>
struct HeadQkNormCase : OpCase {
  Operation op{};
  Index t, all, hd, half;
  HeadQkNormCase(Index t_, HeadQkNorm d, Index others, Index width, Index half_)
      : t(t_), all(d.q_heads + d.k_heads + others), hd(width), half(half_) {
    op.desc = d;
    note = fmt::format("{} queries, {} keys, pairs {}, kind {}", d.q_heads, d.k_heads, static_cast<int>(d.pairs),
                       static_cast<int>(d.kind));
    in({"x", op.x}, {t, all, hd});
    in({"weight", op.weight}, {d.weights(), hd});
    in({"positions", op.positions}, {t}, whole("positions", {t}, 0, 7), DType::i32);
    Numbers table;
    for (Index i = 0; i < 7 * half; ++i)
      table.insert(table.end(), {std::cos(static_cast<double>(i)), std::sin(static_cast<double>(i))});
    if (half > 0) in({"table", op.table}, {7, half, 2}, table, DType::f32);
    tolerance = gradient_tolerance = 1e-5;
  }
  void run(Device& b) override { ops::run(b, op); }
  ref::HeadQkNormed forward(Values& v) const {
    return ref::head_qk_norm(op.desc, all, hd, half, v["weight"], v["positions"], half > 0 ? v["table"] : Numbers{},
                             v["x"]);
  }
};

struct HeadQkNormForward : HeadQkNormCase<ops::HeadQkNormForward> {
  HeadQkNormForward(Index t_, HeadQkNorm d, Index others, Index width, Index half_)
      : HeadQkNormCase(t_, d, others, width, half_) {
    out({"y", op.y}, {t, all, hd});
    out({"inverse", op.inverse}, {t, d.q_heads + d.k_heads}, DType::f32);
  }
  void expect(Values& v) override {
    const ref::HeadQkNormed want = forward(v);
    v["y"] = want.y;
    v["inverse"] = want.inverse;
  }
};

struct HeadQkNormBackward : HeadQkNormCase<ops::HeadQkNormBackward> {
  HeadQkNormBackward(Index t_, HeadQkNorm d, Index others, Index width, Index half_)
      : HeadQkNormCase(t_, d, others, width, half_) {
    in({"inverse", op.inverse}, {t, d.q_heads + d.k_heads}, forward(values()).inverse, DType::f32);
    in({"dy", op.dy}, {t, all, hd});
    out_gradient({"x", op.dx}, {t, all, hd});
    accumulate_gradient({"weight", op.dweight}, {d.weights(), hd}, DType::f32);
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v).y); }
};

template <class Operation>
struct ProjectionQkNormCase : OpCase {
  Operation op{};
  Index t, row;
  // ranks: number of ranks that share the heads.
  ProjectionQkNormCase(Index t_, Index q, Index k, Index others, Index ranks) : t(t_), row(q + k + others) {
    op.desc = {q, k, ranks * q, ranks * k, 1e-5f, ranks > 1 ? 1.0f : 0.0f};
    note = fmt::format("{} queries, {} keys, {} ranks", q, k, ranks);
    in({"x", op.x}, {t, row});
    if constexpr (requires { op.weight; }) in({"weight", op.weight}, {q + k});
    tolerance = gradient_tolerance = 1e-5;
    if (ranks == 1) return;
    Numbers elsewhere = normal("others", {t, 2});
    for (double& x : elsewhere) x = std::abs(x) * static_cast<double>((ranks - 1) * q);
    in("others", {t, 2}, elsewhere, DType::f32);
  }
  void run(Device& b) override { ops::run(b, op); }
  // Sums of squares of this rank and the others.
  Numbers squares(Values& v) const {
    Numbers sums = ref::projection_sums(op.desc, row, v["x"], v["x"]);
    for (std::size_t i = 0; i < v["others"].size(); ++i) sums[i] += v["others"][i];
    return sums;
  }
  Numbers forward(Values& v) const { return ref::projection_qk_norm(op.desc, row, v["weight"], v["others"], v["x"]); }
};

struct ProjectionQkNormSums : ProjectionQkNormCase<ops::ProjectionQkNormSums> {
  ProjectionQkNormSums(Index t_, Index q, Index k, Index others, Index ranks)
      : ProjectionQkNormCase(t_, q, k, others, ranks) {
    in({"other_x", op.y}, {t, row});
    out({"sums", op.sums}, {t, 2}, DType::f32);
  }
  void expect(Values& v) override { v["sums"] = ref::projection_sums(op.desc, row, v["x"], v["other_x"]); }
};

struct ProjectionQkNormForward : ProjectionQkNormCase<ops::ProjectionQkNormForward> {
  ProjectionQkNormForward(Index t_, Index q, Index k, Index others, Index ranks)
      : ProjectionQkNormCase(t_, q, k, others, ranks) {
    in({"squares", op.squares}, {t, 2}, squares(values()), DType::f32);
    out({"y", op.y}, {t, row});
  }
  void expect(Values& v) override { v["y"] = forward(v); }
};

// Backward on a rank whose peers contribute no gradients.
struct ProjectionQkNormBackward : ProjectionQkNormCase<ops::ProjectionQkNormBackward> {
  ProjectionQkNormBackward(Index t_, Index q, Index k, Index others, Index ranks)
      : ProjectionQkNormCase(t_, q, k, others, ranks) {
    in({"dy", op.dy}, {t, row});
    in({"squares", op.squares}, {t, 2}, squares(values()), DType::f32);
    in({"products", op.products}, {t, 2}, ref::projection_sums(op.desc, row, values()["dy"], forward(values())),
       DType::f32);
    out_gradient({"x", op.dx}, {t, row});
    accumulate_gradient({"weight", op.dweight}, {q + k}, DType::f32);
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v)); }
};

}  // namespace sy::numerics
