// Cases of GEMMs and biases (op_case.h).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/ops/bias.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/grouped_gemm.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

struct GemmCase : OpCase {
  struct Form {
    bool transpose_a, transpose_b, accumulate;
  } form;
  Index m, n, q;
  GemmCase(Form f, Index m_, Index n_, Index q_, DType c) : form(f), m(m_), n(n_), q(q_) {
    note = fmt::format("transposed {}{} into {}", f.transpose_a, f.transpose_b, info(c).name);
    in("a", f.transpose_a ? Shape{q, m} : Shape{m, q});
    in("b", f.transpose_b ? Shape{n, q} : Shape{q, n});
    f.accumulate ? accumulate("c", {m, n}, c) : out("c", {m, n}, c);
    tolerance = 1e-5;
    if (f.accumulate) allow_rounded_product();
  }
  // Kernels of cuBLAS on Hopper round a product to the type of C before they add it. Half an ulp of
  // a product of five standard deviations is 2^-8 of that.
  void allow_rounded_product() { bf16_tolerance = 5 * 0x1p-8; }
  virtual View addend() const { return {}; }
  void run(Device& b) override {
    ops::run(b, ops::Gemm{.a = at("a"),
                          .b = at("b"),
                          .addend = addend(),
                          .transpose_a = form.transpose_a,
                          .transpose_b = form.transpose_b,
                          .accumulate = form.accumulate,
                          .c = at("c")});
  }
  void expect(Values& v) override {
    const Numbers product = ref::gemm({.a = form.transpose_a, .b = form.transpose_b}, m, n, q, v["a"], v["b"]);
    for (std::size_t i = 0; i < product.size(); ++i) v["c"][i] += product[i];
  }
};

// A GEMM with an addend: another matrix, or c itself passed as the addend.
struct SumCase : GemmCase {
  SumCase(Form f, Index m_, Index n_, Index q_, DType c) : GemmCase(f, m_, n_, q_, c) {
    if (!f.accumulate) in("addend", {m, n}, c);
    form.accumulate = false;
    allow_rounded_product();
  }
  View addend() const override { return at("addend") ? at("addend") : at("c"); }
  void expect(Values& v) override {
    if (at("addend")) v["c"] = v["addend"];
    GemmCase::expect(v);
  }
};

// A packed weight has no values that a case could know: the product with it is compared.
struct PackWeightCase : OpCase {
  GemmPass pass;
  Index rows, n, q;
  PackWeightCase(GemmPass p, Index rows_, Index n_, Index q_) : pass(p), rows(rows_), n(n_), q(q_) {
    note = pass == GemmPass::fprop ? "fprop" : "dgrad";
    in("x", {rows, pass == GemmPass::fprop ? q : n});
    in("w", {n, q});
    out("y", {rows, pass == GemmPass::fprop ? n : q});
    tolerance = 1e-5;
  }
  void run(Device& device) override {
    Weight w(at("w"));
    const Index bytes = device.packed_weight_bytes({n, q}, at("w").dtype(), pass, WeightFormat::native);
    Tensor packed;
    if (bytes > 0) {
      packed = device.tensor({bytes}, DType::u8);
      ops::run(device, ops::PackWeight{.weight = at("w"), .pass = pass, .packed = packed});
      (pass == GemmPass::fprop ? w.packed_fprop : w.packed_dgrad).elements = packed;
    }
    ops::run(device, ops::Gemm{.a = at("x"), .b = w, .transpose_b = pass == GemmPass::fprop, .c = at("y")});
    device.synchronize();
  }
  void expect(Values& v) override {
    v["y"] = pass == GemmPass::fprop ? ref::gemm({.b = true}, rows, n, q, v["x"], v["w"])
                                     : ref::gemm({}, rows, q, n, v["x"], v["w"]);
  }
};

struct GroupedCase : OpCase {
  Index experts, rows, n, q;
  std::vector<std::int32_t> host;
  GroupOffsets groups() const { return {at("offsets"), host.data()}; }
  GroupedCase(const std::vector<Index>& counts, Index n_, Index q_)
      : experts(static_cast<Index>(counts.size())), n(n_), q(q_) {
    host.push_back(0);
    for (Index count : counts) host.push_back(host.back() + static_cast<std::int32_t>(count));
    rows = host.back();
    in("offsets", {experts + 1}, Numbers(host.begin(), host.end()), DType::i32);
    tolerance = gradient_tolerance = 1e-5;
  }
  Numbers product(Values& v) const { return ref::grouped_gemm(n, q, v["x"], v["w"], v["offsets"]); }
  double loss(Values& v) override { return ref::dot(v["dy"], product(v)); }
};

struct GroupedGemm : GroupedCase {
  GroupedGemm(const std::vector<Index>& counts, Index n_, Index q_) : GroupedCase(counts, n_, q_) {
    in("x", {rows, q});
    in("w", {experts, n, q});
    out("y", {rows, n});
  }
  void run(Device& b) override {
    ops::run(b, ops::GroupedGemm{.x = at("x"), .w = at("w"), .groups = groups(), .y = at("y")});
  }
  void expect(Values& v) override { v["y"] = product(v); }
};

struct GroupedGemmInput : GroupedCase {
  GroupedGemmInput(const std::vector<Index>& counts, Index n_, Index q_) : GroupedCase(counts, n_, q_) {
    hidden("x", {rows, q});
    in("w", {experts, n, q});
    in("dy", {rows, n});
    out_gradient("x", {rows, q});
  }
  void run(Device& b) override {
    ops::run(b, ops::GroupedGemmDgrad{.dy = at("dy"), .w = at("w"), .groups = groups(), .dx = at("dx")});
  }
};

template <bool adds>
struct GroupedGemmWeight : GroupedCase {
  GroupedGemmWeight(const std::vector<Index>& counts, Index n_, Index q_) : GroupedCase(counts, n_, q_) {
    in("x", {rows, q});
    hidden("w", {experts, n, q});
    in("dy", {rows, n});
    adds ? accumulate_gradient("w", {experts, n, q}, DType::f32) : out_gradient("w", {experts, n, q}, DType::f32);
  }
  void run(Device& b) override {
    ops::run(
        b, ops::GroupedGemmWgrad{.dy = at("dy"), .x = at("x"), .groups = groups(), .accumulate = adds, .dw = at("dw")});
  }
};

// Bias of columns [first, first + n) of rows of `width`.
struct GroupedBiasCase : GroupedCase {
  Index first, width;
  GroupedBiasCase(const std::vector<Index>& counts, Index n_, Index first_, Index width_, bool scaled)
      : GroupedCase(counts, n_, 0), first(first_), width(width_) {
    note = fmt::format("from column {}", first);
    in_if(scaled, "row_scale", {rows}, DType::f32);
    in("bias", {experts, n});
  }
  Numbers forward(Values& v, Numbers y) {
    return ref::grouped_bias(n, first, width, v["bias"], v["row_scale"], v["offsets"], std::move(y));
  }
};

struct GroupedBiasForward : GroupedBiasCase {
  GroupedBiasForward(const std::vector<Index>& counts, Index n_, Index first_, Index width_, bool scaled)
      : GroupedBiasCase(counts, n_, first_, width_, scaled) {
    accumulate("y", {rows, width});
  }
  void run(Device& b) override {
    ops::run(b,
             ops::GroupedBiasForward{
                 .bias = at("bias"), .row_scale = at("row_scale"), .groups = groups(), .first = first, .y = at("y")});
  }
  void expect(Values& v) override { v["y"] = forward(v, v["y"]); }
};

struct GroupedBiasBackward : GroupedBiasCase {
  GroupedBiasBackward(const std::vector<Index>& counts, Index n_, Index first_, Index width_, bool scaled)
      : GroupedBiasCase(counts, n_, first_, width_, scaled) {
    in("dy", {rows, width});
    accumulate_gradient("bias", {experts, n}, DType::f32);
    if (!scaled) return;
    accumulate_gradient("row_scale", {rows}, DType::f32);
  }
  void run(Device& b) override {
    ops::run(b, ops::GroupedBiasBackward{.dy = at("dy"),
                                         .bias = at("bias"),
                                         .row_scale = at("row_scale"),
                                         .groups = groups(),
                                         .first = first,
                                         .dbias = at("dbias"),
                                         .drow_scale = at("drow_scale")});
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v, Numbers(rows * width, 0.0))); }
};

struct BiasForward : OpCase {
  Index t, n;
  explicit BiasForward(Rows s) : t(s.t), n(s.d) {
    in("bias", {n});
    accumulate("y", {t, n});
  }
  void run(Device& b) override { ops::run(b, ops::BiasForward{.bias = at("bias"), .y = at("y")}); }
  void expect(Values& v) override { v["y"] = ref::bias_forward(t, n, v["bias"], v["y"]); }
};

struct BiasBackward : OpCase {
  Index t, n;
  explicit BiasBackward(Rows s) : t(s.t), n(s.d) {
    hidden("bias", {n});
    in("dy", {t, n});
    accumulate_gradient("bias", {n}, DType::f32);
  }
  void run(Device& b) override { ops::run(b, ops::BiasBackward{.dy = at("dy"), .dbias = at("dbias")}); }
  double loss(Values& v) override { return ref::dot(v["dy"], ref::bias_forward(t, n, v["bias"], Numbers(t * n, 0.0))); }
};

}  // namespace sy::numerics
