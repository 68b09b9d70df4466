// Cases of activations and of the GEMMs that are fused with them (op_case.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops/activation.h"
#include "kernels/ops/ffn.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

// Returns x with other numbers in place of those near the kinks of the function.
inline Numbers without_kinks(const FfnActivation& desc, Numbers x) {
  for (double& value : x)
    for (double kink : {0.0, static_cast<double>(desc.limit)})
      if (std::abs(std::abs(value) - kink) < 0.01) value = 0.5;
  return x;
}

template <class Operation>
struct ActivationCase : OpCase {
  Operation op{};
  Index r, f;
  ActivationCase(FfnActivation a, Rows s, bool scaled, double deviation) : r(s.t), f(s.d) {
    op.activation = a;
    note = fmt::format("activation {} beta {} limit {}", static_cast<int>(a.act), a.beta, a.limit);
    const Shape hidden_shape = {r, a.gated ? 2 * f : f};
    in({"h", op.h}, hidden_shape, without_kinks(a, normal("h", hidden_shape, deviation)));
    in_if(scaled, {"row_scale", op.row_scale}, {r}, DType::f32);
  }
  void run(Device& b) override { ops::run(b, op); }
  Numbers forward(Values& v) const { return ref::ffn_activation(op.activation, r, f, v["h"], v["row_scale"]); }
};

struct ActivationForward : ActivationCase<ops::ActivationForward> {
  ActivationForward(FfnActivation a, Rows s, bool scaled, double deviation) : ActivationCase(a, s, scaled, deviation) {
    out({"y", op.y}, {r, f});
    tolerance = 2e-6;  // the formula of erf has an absolute error of 1.5e-7, times x and the scale
  }
  void expect(Values& v) override { v["y"] = forward(v); }
};

// activated: the operation writes the activation, too
struct ActivationBackward : ActivationCase<ops::ActivationBackward> {
  ActivationBackward(FfnActivation a, Rows s, bool scaled, bool activated) : ActivationCase(a, s, scaled, 1) {
    in({"dy", op.dy}, {r, f});
    out_gradient({"h", op.dh}, {r, a.gated ? 2 * f : f});
    if (activated) out({"y", op.y}, {r, f});
    tolerance = 2e-6;  // as of ActivationForward
    if (scaled) out_gradient({"row_scale", op.drow_scale}, {r}, DType::f32);
  }
  void expect(Values& v) override {
    if (op.y) v["y"] = forward(v);
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v)); }
};

// shift: added to both parameters. deviation: of h.
template <class Operation>
struct XieluCase : OpCase {
  Operation op{};
  Index r, f;
  XieluCase(Rows s, double shift, double deviation) : r(s.t), f(s.d) {
    in({"h", op.h}, {r, f}, normal("h", {r, f}, deviation));
    in({"parameters", op.parameters}, {2}, Numbers{shift + 0.2, shift - 1.05}, DType::f32);
  }
  void run(Device& b) override { ops::run(b, op); }
  Numbers forward(Values& v) const { return ref::xielu(v["h"], v["parameters"]); }
};

struct XieluForward : XieluCase<ops::XieluForward> {
  XieluForward(Rows s, double shift, double deviation) : XieluCase(s, shift, deviation) { out({"y", op.y}, {r, f}); }
  void expect(Values& v) override { v["y"] = forward(v); }
};

struct XieluBackward : XieluCase<ops::XieluBackward> {
  XieluBackward(Rows s, double shift, bool learned) : XieluCase(s, shift, 1) {
    in({"dy", op.dy}, {r, f});
    out_gradient({"h", op.dh}, {r, f});
    if (learned) out({"dparameters", op.dparameters}, {r, 2}, DType::f32);
    tolerance = 1e-5;
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v)); }
  // dparameters: by central differences of the reference, row by row.
  void expect(Values& v) override {
    constexpr double step = 1e-5;
    for (Index i = 0; i < (op.dparameters ? r * 2 : 0); ++i) {
      double change = 0;
      for (const double side : {step, -step}) {
        Numbers parameters = v["parameters"];
        parameters[i % 2] += side;
        for (Index c = i / 2 * f; c < (i / 2 + 1) * f; ++c)
          change += v["dy"][c] * ref::xielu(v["h"][c], parameters[0], parameters[1]) / (2 * side);
      }
      v["dparameters"][i] = change;
    }
  }
};

// counts: number of rows of each expert; empty for a single matrix.
struct FfnSizes {
  std::vector<Index> counts;
  Index rows, d, f;
  bool stack() const { return !counts.empty(); }
  Index experts() const { return std::max<Index>(1, std::ssize(counts)); }
};
const FfnSizes ffn_sizes[] = {{{}, 0, 3, 4},
                              {{}, 1, 1, 1},
                              {{}, 7, 5, 3},
                              {{}, 51, 6, 70},
                              {{}, 9, 400, 6},
                              {{0, 0}, 0, 4, 5},
                              {{1}, 1, 9, 16},
                              {{0, 7, 0, 50, 1}, 58, 5, 17},
                              {{0, 7, 0, 150, 1}, 158, 40, 72}};

template <class Operation>
struct FfnCase : OpCase {
  Operation op{};
  FfnSizes s;
  Index width, tokens;
  bool indexed;
  std::vector<std::int32_t> host;

  // x: the operand of `op` whose rows the GEMM reads
  FfnCase(FfnActivation a, const FfnSizes& sizes, GatheredRows Operation::*x, bool by_index)
      : s(sizes), width(a.gated ? 2 * s.f : s.f), tokens(by_index ? 40 : s.rows), indexed(by_index) {
    op.activation = a;
    note = fmt::format("activation {} {}", static_cast<int>(a.act), a.gated ? "gated" : "plain");
    host.push_back(0);
    for (Index n : s.counts) host.push_back(host.back() + static_cast<std::int32_t>(n));
    if (s.stack()) {
      op.groups.host = host.data();
      in({"offsets", op.groups.offsets}, {s.experts() + 1}, Numbers(host.begin(), host.end()), DType::i32);
    }
    if (indexed) in({"index", (op.*x).index}, {s.rows}, whole("index", {s.rows}, 0, tokens), DType::i32);
    tolerance = gradient_tolerance = 2e-5;
    bf16_tolerance = 0.1;  // products of large rounded values of h; FfnBits compares exactly
  }
  void run(Device& b) override { ops::run(b, op); }
  Shape of_experts(Index rows, Index cols) const {
    return s.stack() ? Shape{s.experts(), rows, cols} : Shape{rows, cols};
  }
  Numbers offsets() const {
    return s.stack() ? Numbers(host.begin(), host.end()) : Numbers{0, static_cast<double>(s.rows)};
  }
  // Returns the rows of x ([tokens, d]) that the GEMM reads.
  Numbers permuted(Values& v, const std::string& x) const {
    return indexed ? ref::permute(s.d, v[x], v["index"]) : v[x];
  }
  Numbers activated(Values& v) const { return ref::ffn_activation(op.activation, s.rows, s.f, v["h"], v["row_scale"]); }
};

struct FfnForward : FfnCase<ops::FfnForward> {
  FfnForward(FfnActivation a, const FfnSizes& sizes, bool by_index, bool biased)
      : FfnCase(a, sizes, &ops::FfnForward::x, by_index) {
    in({"x", op.x.values}, {tokens, s.d});
    in({"w", op.w}, of_experts(width, s.d));
    in_if(biased, {"bias", op.bias}, s.stack() ? Shape{s.experts(), width} : Shape{width});
    in_if(biased, {"row_scale", op.row_scale}, {s.rows}, DType::f32);
    out({"h", op.h}, {s.rows, width});
    out({"y", op.y}, {s.rows, s.f});
  }
  void expect(Values& v) override {
    v["h"] = ref::grouped_gemm(width, s.d, permuted(v, "x"), v["w"], offsets());
    if (!v["bias"].empty()) v["h"] = ref::grouped_bias(width, 0, width, v["bias"], {}, offsets(), v["h"]);
    v["y"] = activated(v);
  }
};

struct FfnBackward : FfnCase<ops::FfnBackward> {
  FfnBackward(FfnActivation a, const FfnSizes& sizes, bool by_index, bool scaled)
      : FfnCase(a, sizes, &ops::FfnBackward::dout, by_index) {
    // The gradient with respect to the activation's output is rounded.
    if (compute == DType::bf16) gradient_tolerance = 0.01;
    in({"dout", op.dout.values}, {tokens, s.d});
    in({"w", op.w}, of_experts(s.d, s.f));
    in({"h", op.h}, {s.rows, width}, without_kinks(a, normal("h", {s.rows, width})));
    in_if(scaled, {"row_scale", op.row_scale}, {s.rows}, DType::f32);
    out_gradient({"h", op.dh}, {s.rows, width});
    out({"y", op.y}, {s.rows, s.f});
    if (scaled) out_gradient({"row_scale", op.drow_scale}, {s.rows}, DType::f32);
  }
  void expect(Values& v) override { v["y"] = activated(v); }
  double loss(Values& v) override {
    return ref::dot(permuted(v, "dout"), ref::grouped_gemm(s.d, s.f, activated(v), v["w"], offsets()));
  }
};

}  // namespace sy::numerics
