// Cases of batch normalisation (op_case.h).
#pragma once

#include "kernels/ops/batch_norm.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

// Tokens that count: all of them, two of three, or none.
enum class RealTokens { all, some, none };

template <class Operation>
struct BatchNormCase : OpCase {
  static constexpr float eps = 1e-3f;
  Operation op{};
  Index t, d;
  BatchNormCase(Rows s, RealTokens real, double deviation = 1) : t(s.t), d(s.d) {
    note = fmt::format("inputs of size {}", deviation);
    Numbers x = normal("x", {t, d}, deviation);
    for (double& value : x) value += 3 * deviation;
    in({"x", op.x}, {t, d}, x);
    if (real == RealTokens::all) return;
    Numbers mask(static_cast<std::size_t>(t));
    for (Index i = 0; i < t; ++i) mask[i] = real == RealTokens::some && i % 3 != 1;
    if constexpr (requires { op.mask; })
      in({"mask", op.mask}, {t}, mask, DType::i32);
    else
      in("mask", {t}, mask, DType::i32);
  }
  void run(Device& b) override { ops::run(b, op); }
  ref::ColumnMoments moments_of(Values& v) const { return ref::column_moments(t, d, v["x"], v["mask"]); }
  void add_moments() {
    in({"moments", op.moments}, {2 * d + 1}, ref::norm_moments(moments_of(values()), static_cast<double>(eps)),
       DType::f32);
  }
  // Sums of dy and of dy * n: [2, d].
  Numbers gradient_sums(Values& v) const {
    const Numbers &x = v["x"], &dy = v["dy"], &moments = v["moments"];
    Numbers sums(static_cast<std::size_t>(2 * d));
    for (Index i = 0; i < t * d; ++i) {
      sums[i % d] += dy[i];
      sums[d + i % d] += dy[i] * (x[i] - moments[i % d]) * moments[d + i % d];
    }
    return sums;
  }
  double loss_of(Values& v) const {
    return ref::dot(v["dy"], ref::batch_norm(moments_of(v), static_cast<double>(eps), v["x"], v["weight"], v["bias"]));
  }
};

struct BatchNormSums : BatchNormCase<ops::BatchNormSums> {
  BatchNormSums(Rows s, RealTokens real, double deviation) : BatchNormCase(s, real, deviation) {
    out({"sums", op.sums}, {2 * d + 1}, DType::f64);
  }
  void expect(Values& v) override {
    const ref::ColumnMoments m = moments_of(v);
    for (Index i = 0; i < d; ++i) {
      v["sums"][i] = m.count * m.mean[i];
      v["sums"][d + i] = m.count * (m.variance[i] + m.mean[i] * m.mean[i]);
    }
    v["sums"][2 * d] = m.count;
  }
};

// Moments of tokens whose columns have means far from 0, or of running averages.
struct BatchNormMoments : OperationCase<ops::BatchNormMoments> {
  Index d;
  double count;  // number of real tokens; -1: there are no sums
  BatchNormMoments(Index columns, double tokens, bool averaged) : d(columns), count(tokens) {
    op.eps = 1e-3f;
    op.momentum = 0.1f;
    note = fmt::format("{} tokens", count);
    if (count >= 0) {
      Numbers sums(static_cast<std::size_t>(2 * d + 1));
      for (Index i = 0; i < d; ++i) {
        sums[i] = count * mean(i);
        sums[d + i] = count * (mean(i) * mean(i) + variance(i));
      }
      sums[2 * d] = count;
      in({"sums", op.sums}, {2 * d + 1}, sums, DType::f64);
    }
    Numbers averages = normal("averages", {2, d});
    for (double& average : averages) average = std::abs(average);
    if (averaged) in_out({"averages", op.averages}, {2, d}, averages, DType::f32);
    out({"moments", op.moments}, {2 * d + 1}, DType::f32);
  }
  double mean(Index i) const { return count > 0 ? 100 - 7 * static_cast<double>(i) : 0; }
  double variance(Index i) const { return count > 1 ? 0.5 + static_cast<double>(i) : 0; }
  void expect(Values& v) override {
    ref::ColumnMoments m;
    for (Index i = 0; i < d; ++i) {
      m.mean.push_back(count >= 0 ? mean(i) : v["averages"][i]);
      m.variance.push_back(count >= 0 ? variance(i) : v["averages"][d + i]);
    }
    m.count = std::max(count, 0.0);
    v["moments"] = ref::norm_moments(m, static_cast<double>(op.eps));
    if (!op.averages || count < 2) return;
    for (Index i = 0; i < d; ++i) {
      v["averages"][i] = 0.9 * v["averages"][i] + 0.1 * mean(i);
      v["averages"][d + i] = 0.9 * v["averages"][d + i] + 0.1 * variance(i) * count / (count - 1);
    }
  }
};

struct BatchNormForward : BatchNormCase<ops::BatchNormForward> {
  BatchNormForward(Rows s, bool biased) : BatchNormCase(s, RealTokens::some) {
    add_moments();
    in({"weight", op.weight}, {d});
    in_if(biased, {"bias", op.bias}, {d});
    out({"y", op.y}, {t, d});
    tolerance = 2e-5;  // two equal tokens of a mean far from 0: 1 / sqrt(eps) times its rounding
  }
  void expect(Values& v) override {
    v["y"] = ref::batch_norm(moments_of(v), static_cast<double>(eps), v["x"], v["weight"], v["bias"]);
  }
};

struct BatchNormGradientSums : BatchNormCase<ops::BatchNormGradientSums> {
  BatchNormGradientSums(Rows s, RealTokens real, bool biased) : BatchNormCase(s, real) {
    add_moments();
    in({"dy", op.dy}, {t, d});
    hidden("weight", {d});
    if (biased) hidden("bias", {d});
    out({"sums", op.sums}, {2, d}, DType::f64);
    accumulate_gradient({"weight", op.dweight}, {d}, DType::f32);
    if (biased) accumulate_gradient({"bias", op.dbias}, {d}, DType::f32);
    tolerance = 3e-6;
  }
  void expect(Values& v) override {
    const Numbers sums = gradient_sums(v);
    v["sums"] = sums;
    for (Index i = 0; i < d; ++i) {
      v["dweight"][i] += sums[d + i];
      if (!v["bias"].empty()) v["dbias"][i] += sums[i];
    }
  }
  double loss(Values& v) override { return loss_of(v); }
};

struct BatchNormBackward : BatchNormCase<ops::BatchNormBackward> {
  BatchNormBackward(Rows s, RealTokens real) : BatchNormCase(s, real) {
    add_moments();
    in({"dy", op.dy}, {t, d});
    in({"weight", op.weight}, {d});
    in({"sums", op.sums}, {2, d}, gradient_sums(values()), DType::f64);
    accumulate_gradient({"x", op.dx}, {t, d});
    gradient_tolerance = 5e-5;  // as that of BatchNormForward
  }
  double loss(Values& v) override { return loss_of(v); }
};

}  // namespace sy::numerics
