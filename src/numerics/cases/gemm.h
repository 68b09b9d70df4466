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

struct GemmCase : OperationCase<ops::Gemm> {
  struct Form {
    bool transpose_a, transpose_b, accumulate;
  };
  Index m, n, q;
  GemmCase(Form f, Index m_, Index n_, Index q_, DType c) : m(m_), n(n_), q(q_) {
    op.transpose_a = f.transpose_a;
    op.transpose_b = f.transpose_b;
    op.accumulate = f.accumulate;
    note = fmt::format("transposed {}{} into {}", f.transpose_a, f.transpose_b, info(c).name);
    in({"a", op.a}, f.transpose_a ? Shape{q, m} : Shape{m, q});
    in({"b", op.b}, f.transpose_b ? Shape{n, q} : Shape{q, n});
    f.accumulate ? accumulate({"c", op.c}, {m, n}, c) : out({"c", op.c}, {m, n}, c);
    tolerance = 1e-5;
    if (f.accumulate) allow_rounded_product();
  }
  // Kernels of cuBLAS on Hopper round a product to the type of C before they add it. Half an ulp of
  // a product of five standard deviations is 2^-8 of that.
  void allow_rounded_product() { bf16_tolerance = 5 * 0x1p-8; }
  void expect(Values& v) override {
    const Numbers product = ref::gemm({.a = op.transpose_a, .b = op.transpose_b}, m, n, q, v["a"], v["b"]);
    for (std::size_t i = 0; i < product.size(); ++i) v["c"][i] += product[i];
  }
};

// A GEMM with an addend: another matrix, or c itself passed as the addend.
struct SumCase : GemmCase {
  SumCase(Form f, Index m_, Index n_, Index q_, DType c) : GemmCase(f, m_, n_, q_, c) {
    if (!f.accumulate) in({"addend", op.addend}, {m, n}, c);
    op.accumulate = false;
    allow_rounded_product();
  }
  void run(Device& b) override {
    if (!at("addend")) op.addend = op.c;
    GemmCase::run(b);
  }
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

template <class Operation>
struct GroupedCase : OpCase {
  Operation op{};
  Index experts, rows, n, q;
  std::vector<std::int32_t> host;
  GroupedCase(const std::vector<Index>& counts, Index n_, Index q_)
      : experts(static_cast<Index>(counts.size())), n(n_), q(q_) {
    host.push_back(0);
    for (Index count : counts) host.push_back(host.back() + static_cast<std::int32_t>(count));
    rows = host.back();
    op.groups.host = host.data();
    in({"offsets", op.groups.offsets}, {experts + 1}, Numbers(host.begin(), host.end()), DType::i32);
    tolerance = gradient_tolerance = 1e-5;
  }
  void run(Device& b) override { ops::run(b, op); }
  Numbers product(Values& v) const { return ref::grouped_gemm(n, q, v["x"], v["w"], v["offsets"]); }
  double loss(Values& v) override { return ref::dot(v["dy"], product(v)); }
};

struct GroupedGemm : GroupedCase<ops::GroupedGemm> {
  GroupedGemm(const std::vector<Index>& counts, Index n_, Index q_) : GroupedCase(counts, n_, q_) {
    in({"x", op.x}, {rows, q});
    in({"w", op.w}, {experts, n, q});
    out({"y", op.y}, {rows, n});
  }
  void expect(Values& v) override { v["y"] = product(v); }
};

struct GroupedGemmInput : GroupedCase<ops::GroupedGemmDgrad> {
  GroupedGemmInput(const std::vector<Index>& counts, Index n_, Index q_) : GroupedCase(counts, n_, q_) {
    hidden("x", {rows, q});
    in({"w", op.w}, {experts, n, q});
    in({"dy", op.dy}, {rows, n});
    out_gradient({"x", op.dx}, {rows, q});
  }
};

template <bool adds>
struct GroupedGemmWeight : GroupedCase<ops::GroupedGemmWgrad> {
  GroupedGemmWeight(const std::vector<Index>& counts, Index n_, Index q_) : GroupedCase(counts, n_, q_) {
    op.accumulate = adds;
    in({"x", op.x}, {rows, q});
    hidden("w", {experts, n, q});
    in({"dy", op.dy}, {rows, n});
    const Name w{"w", op.dw};
    adds ? accumulate_gradient(w, {experts, n, q}, DType::f32) : out_gradient(w, {experts, n, q}, DType::f32);
  }
};

// Bias of columns [first, first + n) of rows of `width`.
template <class Operation>
struct GroupedBiasCase : GroupedCase<Operation> {
  using Base = GroupedCase<Operation>;
  using Base::experts, Base::in, Base::in_if, Base::n, Base::note, Base::op, Base::rows;
  Index width;
  GroupedBiasCase(const std::vector<Index>& counts, Index n_, Index first, Index width_, bool scaled)
      : Base(counts, n_, 0), width(width_) {
    op.first = first;
    note = fmt::format("from column {}", first);
    in_if(scaled, {"row_scale", op.row_scale}, {rows}, DType::f32);
    in({"bias", op.bias}, {experts, n});
  }
  Numbers forward(Values& v, const Numbers& y) {
    return ref::grouped_bias(n, op.first, width, v["bias"], v["row_scale"], v["offsets"], y);
  }
};

struct GroupedBiasForward : GroupedBiasCase<ops::GroupedBiasForward> {
  GroupedBiasForward(const std::vector<Index>& counts, Index n_, Index first, Index width_, bool scaled)
      : GroupedBiasCase(counts, n_, first, width_, scaled) {
    accumulate({"y", op.y}, {rows, width});
  }
  void expect(Values& v) override { v["y"] = forward(v, v["y"]); }
};

struct GroupedBiasBackward : GroupedBiasCase<ops::GroupedBiasBackward> {
  GroupedBiasBackward(const std::vector<Index>& counts, Index n_, Index first, Index width_, bool scaled)
      : GroupedBiasCase(counts, n_, first, width_, scaled) {
    in({"dy", op.dy}, {rows, width});
    accumulate_gradient({"bias", op.dbias}, {experts, n}, DType::f32);
    if (scaled) accumulate_gradient({"row_scale", op.drow_scale}, {rows}, DType::f32);
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v, Numbers(rows * width, 0.0))); }
};

struct BiasForward : OperationCase<ops::BiasForward> {
  Index t, n;
  explicit BiasForward(Rows s) : t(s.t), n(s.d) {
    in({"bias", op.bias}, {n});
    accumulate({"y", op.y}, {t, n});
  }
  void expect(Values& v) override { v["y"] = ref::bias_forward(t, n, v["bias"], v["y"]); }
};

struct BiasBackward : OperationCase<ops::BiasBackward> {
  Index t, n;
  explicit BiasBackward(Rows s) : t(s.t), n(s.d) {
    hidden("bias", {n});
    in({"dy", op.dy}, {t, n});
    accumulate_gradient({"bias", op.dbias}, {n}, DType::f32);
  }
  double loss(Values& v) override { return ref::dot(v["dy"], ref::bias_forward(t, n, v["bias"], Numbers(t * n, 0.0))); }
};

}  // namespace sy::numerics
