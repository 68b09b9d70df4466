// Operations of kernels/ops/: memory, GEMMs, norms, activations, positions, attention,
// optimizer. Each has one struct (op_case.h). Operations on tokens are in test_token_ops.cpp.
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/bias.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/grouped_gemm.h"
#include "kernels/ops/heads.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/qk_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/route.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

namespace ref = reference;

class DenseOps : public DeviceOps {};
INSTANTIATE_TEST_SUITE_P(Targets, DenseOps, testing::ValuesIn(targets), target_name);

// ---- memory ----

struct Elementwise : OpCase {
  explicit Elementwise(Index n) {
    in("x", {n});
    in_out("sum", {n});
    in_out("scaled", {n});
    in("numbers", {n}, DType::f32);
    out("filled", {n}, DType::f32);
    out("zeros", {n}, DType::i32);
    out("copied", {n});
    out("narrow", {n}, DType::bf16);
    out("wide", {n}, DType::f32);
    operand("squares", Role::accumulate, {1}, DType::f64, {2.5});
  }
  void run(Device& b) override {
    run_test(b, ops::Add{.x = at("x"), .y = at("sum")});
    run_test(b, ops::Scale{.x = at("scaled"), .factor = -1.7f});
    run_test(b, ops::Fill{.x = at("filled"), .value = 0.75f});
    run_test(b, ops::Fill{.x = at("zeros"), .value = 0});
    run_test(b, ops::Copy{.x = at("x"), .y = at("copied")});
    run_test(b, ops::Convert{.x = at("numbers"), .y = at("narrow")});
    run_test(b, ops::Convert{.x = at("narrow"), .y = at("wide")});
    run_test(b, ops::SumSquares{.x = at("numbers"), .out = at("squares")});
  }
  void expect(Values& v) override {
    for (std::size_t i = 0; i < v["x"].size(); ++i) {
      v["sum"][i] += v["x"][i];
      v["scaled"][i] *= static_cast<double>(-1.7f);
      v["filled"][i] = 0.75;
    }
    v["copied"] = v["x"];
    v["squares"] = {2.5 + ref::dot(v["numbers"], v["numbers"])};
    for (std::size_t i = 0; i < v["numbers"].size(); ++i)
      v["narrow"][i] = v["wide"][i] = float_of_bf16(bf16_of_float(static_cast<float>(v["numbers"][i])));
  }
};

TEST_P(DenseOps, ElementwiseMatchesReference) {
  for (Index n : {0, 1, 7, 1000, 16384, 16385, 100003}) check(Elementwise(n));
}

TEST_P(DenseOps, TensorsAreZeroAndAligned) {
  for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{5}, Shape{300, 7, 11, 3}}) {
    const Tensor t = device->tensor(shape);
    std::vector<float> host(shape.elements(), 1.0f);
    device->to_host(t, host.data());
    device->synchronize();
    EXPECT_EQ(host, std::vector<float>(host.size(), 0.0f)) << shape.str();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.view().bytes()) % 256, 0u);
  }
}

// ---- GEMMs ----

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
  }
  virtual View addend() const { return {}; }
  void run(Device& b) override {
    run_test(b, ops::Gemm{.a = at("a"),
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

TEST_P(DenseOps, GemmMatchesReference) {
  const Index shapes[][3] = {{0, 3, 4},    {3, 0, 4},    {3, 4, 0},      {1, 1, 1},      {1, 65, 33},   {5, 7, 9},
                             {16, 16, 16}, {67, 3, 130}, {129, 97, 300}, {300, 130, 67}, {40, 520, 600}};
  for (const auto& s : shapes)
    for (int flags = 0; flags < 8; ++flags)
      for (DType c : {OpCase::compute, DType::f32})
        check(GemmCase({(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0}, s[0], s[1], s[2], c));
}

// A GEMM with an addend: another matrix, or c itself passed as the addend.
struct SumCase : GemmCase {
  SumCase(Form f, Index m_, Index n_, Index q_, DType c) : GemmCase(f, m_, n_, q_, c) {
    if (!f.accumulate) in("addend", {m, n}, c);
    form.accumulate = false;
  }
  View addend() const override { return at("addend") ? at("addend") : at("c"); }
  void expect(Values& v) override {
    if (at("addend")) v["c"] = v["addend"];
    GemmCase::expect(v);
  }
};

TEST_P(DenseOps, GemmWithAddendMatchesReference) {
  const Index shapes[][3] = {{0, 3, 4}, {3, 4, 0}, {1, 1, 1}, {5, 7, 9}, {16, 16, 16}, {129, 98, 300}, {40, 520, 64}};
  for (const auto& s : shapes)
    for (int flags = 0; flags < 8; ++flags)
      for (DType c : {OpCase::compute, DType::f32})
        check(SumCase({(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0}, s[0], s[1], s[2], c));
}

// Number of rows of each expert; the sum is R.
const std::vector<Index> row_counts[] = {{0}, {5}, {0, 0, 0}, {1, 0, 2}, {0, 7, 0, 130, 1, 0}, {64, 65, 63, 0}};

Numbers offsets_of(const std::vector<Index>& counts) {
  Numbers offsets = {0};
  for (Index c : counts) offsets.push_back(offsets.back() + static_cast<double>(c));
  return offsets;
}

struct GroupedCase : OpCase {
  Index experts, rows, n, q;
  std::vector<std::int32_t> host;
  GroupOffsets groups() const { return {at("offsets"), host.data()}; }
  GroupedCase(const std::vector<Index>& counts, Index n_, Index q_)
      : experts(static_cast<Index>(counts.size())), n(n_), q(q_) {
    const Numbers offsets = offsets_of(counts);
    rows = ref::whole(offsets.back());
    in("offsets", {experts + 1}, offsets, DType::i32);
    for (double x : offsets) host.push_back(static_cast<std::int32_t>(x));
    tolerance = gradient_tolerance = 1e-5;
  }
  Numbers product(Values& v) { return ref::grouped_gemm(n, q, v["x"], v["w"], v["offsets"]); }
  double loss(Values& v) override { return ref::dot(v["dy"], product(v)); }
};

struct GroupedGemm : GroupedCase {
  GroupedGemm(const std::vector<Index>& counts, Index n_, Index q_) : GroupedCase(counts, n_, q_) {
    in("x", {rows, q});
    in("w", {experts, n, q});
    out("y", {rows, n});
  }
  void run(Device& b) override {
    run_test(b, ops::GroupedGemm{.x = at("x"), .w = at("w"), .groups = groups(), .y = at("y")});
  }
  void expect(Values& v) override { v["y"] = product(v); }
};

struct GroupedGemmInput : GroupedCase {
  GroupedGemmInput(const std::vector<Index>& counts, Index n_, Index q_) : GroupedCase(counts, n_, q_) {
    hidden("x", {rows, q});
    in("w", {experts, n, q});
    in("dy", {rows, n});
    out("dx", {rows, q});
    gradients = {{"dx", "x"}};
  }
  void run(Device& b) override {
    run_test(b, ops::GroupedGemmDgrad{.dy = at("dy"), .w = at("w"), .groups = groups(), .dx = at("dx")});
  }
};

template <bool adds>
struct GroupedGemmWeight : GroupedCase {
  GroupedGemmWeight(const std::vector<Index>& counts, Index n_, Index q_) : GroupedCase(counts, n_, q_) {
    in("x", {rows, q});
    hidden("w", {experts, n, q});
    in("dy", {rows, n});
    if (adds)
      accumulate("dw", {experts, n, q}, DType::f32);
    else
      out("dw", {experts, n, q}, DType::f32);
    gradients = {{"dw", "w"}};
  }
  void run(Device& b) override {
    run_test(
        b, ops::GroupedGemmWgrad{.dy = at("dy"), .x = at("x"), .groups = groups(), .accumulate = adds, .dw = at("dw")});
  }
};

template <class Case, class Check>
void grouped_cases(const Check& check) {
  for (const auto& counts : row_counts)
    for (const auto& [n, q] : {std::pair<Index, Index>{1, 1}, {0, 3}, {3, 0}, {5, 3}, {33, 65}, {40, 24}})
      check(Case(counts, n, q));
}

TEST_P(DenseOps, GroupedGemmMatchesReference) {
  grouped_cases<GroupedGemm>([&](auto&& c) { check(c); });
}
TEST_P(DenseOps, GroupedGemmDgradMatchesReference) {
  grouped_cases<GroupedGemmInput>([&](auto&& c) { check(c); });
}
TEST_P(DenseOps, GroupedGemmWgradMatchesReference) {
  grouped_cases<GroupedGemmWeight<true>>([&](auto&& c) { check(c); });
  grouped_cases<GroupedGemmWeight<false>>([&](auto&& c) { check(c); });
}

// Bias of columns [first, first + n) of rows of `width`.
struct GroupedBiasCase : GroupedCase {
  Index first, width;
  GroupedBiasCase(const std::vector<Index>& counts, Index n_, Index first_, Index width_, bool scaled)
      : GroupedCase(counts, n_, 0), first(first_), width(width_) {
    note = fmt::format("from column {}", first);
    in_if(scaled, "row_scale", {rows}, DType::f32);
  }
  Numbers forward(Values& v, Numbers y) {
    return ref::grouped_bias(n, first, width, v["bias"], v["row_scale"], v["offsets"], std::move(y));
  }
};

struct GroupedBiasForward : GroupedBiasCase {
  GroupedBiasForward(const std::vector<Index>& counts, Index n_, Index first_, Index width_, bool scaled)
      : GroupedBiasCase(counts, n_, first_, width_, scaled) {
    in("bias", {experts, n});
    accumulate("y", {rows, width});
  }
  void run(Device& b) override {
    run_test(b,
             ops::GroupedBiasForward{
                 .bias = at("bias"), .row_scale = at("row_scale"), .groups = groups(), .first = first, .y = at("y")});
  }
  void expect(Values& v) override { v["y"] = forward(v, v["y"]); }
};

struct GroupedBiasBackward : GroupedBiasCase {
  GroupedBiasBackward(const std::vector<Index>& counts, Index n_, Index first_, Index width_, bool scaled)
      : GroupedBiasCase(counts, n_, first_, width_, scaled) {
    in("bias", {experts, n});
    in("dy", {rows, width});
    accumulate("dbias", {experts, n}, DType::f32);
    gradients = {{"dbias", "bias"}};
    if (!scaled) return;
    accumulate("drow_scale", {rows}, DType::f32);
    gradients.push_back({"drow_scale", "row_scale"});
  }
  void run(Device& b) override {
    run_test(b, ops::GroupedBiasBackward{.dy = at("dy"),
                                         .bias = at("bias"),
                                         .row_scale = at("row_scale"),
                                         .groups = groups(),
                                         .first = first,
                                         .dbias = at("dbias"),
                                         .drow_scale = at("drow_scale")});
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v, Numbers(rows * width, 0.0))); }
};

TEST_P(DenseOps, GroupedBiasMatchesReference) {
  for (const auto& counts : row_counts)
    for (bool scaled : {false, true})
      for (const auto& [n, first, width] :
           {std::tuple<Index, Index, Index>{1, 0, 1}, {0, 2, 3}, {3, 2, 5}, {40, 0, 40}, {33, 7, 65}, {5, 0, 300}}) {
        check(GroupedBiasForward(counts, n, first, width, scaled));
        check(GroupedBiasBackward(counts, n, first, width, scaled));
      }
}

struct BiasForward : OpCase {
  Index t, n;
  explicit BiasForward(Rows s) : t(s.t), n(s.d) {
    in("bias", {n});
    accumulate("y", {t, n});
  }
  void run(Device& b) override { run_test(b, ops::BiasForward{.bias = at("bias"), .y = at("y")}); }
  void expect(Values& v) override { v["y"] = ref::bias_forward(t, n, v["bias"], v["y"]); }
};

struct BiasBackward : OpCase {
  Index t, n;
  explicit BiasBackward(Rows s) : t(s.t), n(s.d) {
    hidden("bias", {n});
    in("dy", {t, n});
    accumulate("dbias", {n}, DType::f32);
    gradients = {{"dbias", "bias"}};
  }
  void run(Device& b) override { run_test(b, ops::BiasBackward{.dy = at("dy"), .dbias = at("dbias")}); }
  double loss(Values& v) override { return ref::dot(v["dy"], ref::bias_forward(t, n, v["bias"], Numbers(t * n, 0.0))); }
};

TEST_P(DenseOps, BiasMatchesReference) {
  for (Rows s : many_rows) {
    check(BiasForward(s));
    check(BiasBackward(s));
  }
}

// ---- norms ----

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
    run_test(b, ops::NormForward{.x = at("x"),
                                 .weight = at("weight"),
                                 .bias = at("bias"),
                                 .desc = desc,
                                 .y = at("y"),
                                 .moments = at("moments")});
  }
  void expect(Values& v) override {
    if (t * d == 0) return;
    std::tie(v["y"], v["moments"]) = [](ref::Norm n) {
      return std::pair(n.y, n.moments);
    }(ref::norm(desc, t, d, v["x"], v["weight"], v["bias"]));
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
    accumulate("dx", {t, d});
    accumulate("dweight", {d}, DType::f32);
    gradients = {{"dx", "x"}, {"dweight", "weight"}};
    if (biased) {
      accumulate("dbias", {d}, DType::f32);
      gradients.push_back({"dbias", "bias"});
    }
  }
  void run(Device& b) override {
    run_test(b, ops::NormBackward{.dy = at("dy"),
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

TEST_P(DenseOps, NormMatchesReference) {
  for (NormKind kind : {NormKind::rmsnorm, NormKind::layernorm})
    for (bool biased : {false, true})
      for (Rows s : many_rows) {
        const NormDesc desc{kind, 1e-5f, biased ? 1.0f : 0.0f};
        for (double deviation : {1.0, 1e-3, 1e4}) check(NormForward(desc, s, biased, deviation));
        // A LayerNorm of one element has gradient 0; the result is the rounding of the statistics.
        if (s.d != 1) check(NormBackward(desc, s, biased));
      }
  check(NormForward({NormKind::rmsnorm, 1e-5f, 1}, {33, 40}, false, 1));
  check(NormBackward({NormKind::rmsnorm, 1e-5f, 1}, {33, 40}, false));
  check(NormBackward({NormKind::layernorm, 1e-5f, 0}, {33, 40}, true));
}

// ---- FFN ----

// Limits: one that many inputs reach, and one that few reach.
constexpr FfnActivation all_activations[] = {{Activation::relu},
                                             {Activation::gelu},
                                             {Activation::gelu_tanh},
                                             {Activation::silu},
                                             {Activation::silu, true, 1.7f},
                                             {Activation::relu2},
                                             {Activation::sigmoid},
                                             {Activation::identity},
                                             {Activation::hardtanh, false, 1, 0.7f},
                                             {Activation::silu_clamped, true, 1.702f, 0.7f},
                                             {Activation::silu_clamped, true, 1.702f, 7}};

struct ActivationCase : OpCase {
  FfnActivation desc;
  Index r, f;
  ActivationCase(FfnActivation a, Rows s, bool scaled, double deviation) : desc(a), r(s.t), f(s.d) {
    note = fmt::format("activation {} beta {} limit {}", static_cast<int>(a.act), a.beta, a.limit);
    const Shape hidden_shape = {r, a.gated ? 2 * f : f};
    Numbers h = normal("h", hidden_shape, deviation);
    for (double& x : h)
      for (double corner : {0.0, static_cast<double>(desc.limit)})  // kinks of the function
        if (std::abs(std::abs(x) - corner) < 0.01) x = 0.5;
    in("h", hidden_shape, h);
    in_if(scaled, "row_scale", {r}, DType::f32);
  }
  Numbers forward(Values& v) { return ref::ffn_activation(desc, r, f, v["h"], v["row_scale"]); }
};

struct ActivationForward : ActivationCase {
  ActivationForward(FfnActivation a, Rows s, bool scaled, double deviation) : ActivationCase(a, s, scaled, deviation) {
    out("y", {r, f});
    tolerance = 2e-6;  // the formula of erf has an absolute error of 1.5e-7, times x and the scale
  }
  void run(Device& b) override {
    run_test(b, ops::ActivationForward{.h = at("h"), .row_scale = at("row_scale"), .activation = desc, .y = at("y")});
  }
  void expect(Values& v) override { v["y"] = forward(v); }
};

struct ActivationBackward : ActivationCase {
  ActivationBackward(FfnActivation a, Rows s, bool scaled) : ActivationCase(a, s, scaled, 1) {
    in("dy", {r, f});
    out("dh", {r, a.gated ? 2 * f : f});
    gradients = {{"dh", "h"}};
    if (!scaled) return;
    out("drow_scale", {r}, DType::f32);
    gradients.push_back({"drow_scale", "row_scale"});
  }
  void run(Device& b) override {
    run_test(b, ops::ActivationBackward{.dy = at("dy"),
                                        .h = at("h"),
                                        .row_scale = at("row_scale"),
                                        .activation = desc,
                                        .dh = at("dh"),
                                        .drow_scale = at("drow_scale")});
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v)); }
};

TEST_P(DenseOps, ActivationMatchesReference) {
  for (FfnActivation desc : all_activations)
    for (bool gated : {false, true})
      for (bool scaled : {false, true})
        for (Rows s : {Rows{0, 4}, {3, 0}, {1, 1}, {5, 7}, {67, 33}, {130, 257}}) {
          desc.gated = gated;
          for (double deviation : {1.0, 40.0}) check(ActivationForward(desc, s, scaled, deviation));
          check(ActivationBackward(desc, s, scaled));
        }
}

// ---- positions ----

struct RopeCase : OpCase {
  Index all_heads, hd, heads, half;
  bool inverse;
  RopePairs pairs;
  RopeCase(Index t, Index all, Index width, Index turned, Index half_, bool backward, RopePairs p)
      : all_heads(all), hd(width), heads(turned), half(half_), inverse(backward), pairs(p) {
    note = fmt::format("{} heads, inverse {}, pairs {}", turned, backward, static_cast<int>(pairs));
    constexpr Index positions = 11;
    Numbers table(positions * half * 2);
    for (Index row = 0; row < positions; ++row)
      for (Index i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(row) * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
        table[(row * half + i) * 2] = std::cos(angle);
        table[(row * half + i) * 2 + 1] = std::sin(angle);
      }
    in("positions", {t}, whole("positions", {t}, 0, positions), DType::i32);
    in("table", {positions, half, 2}, table, DType::f32);
    in_out("y", {t, all, width});
    if (!backward) return;
    hidden("x", {t, all, width});  // y is the gradient with respect to the rotated x
    gradients = {{"y", "x"}};
  }
  void run(Device& b) override {
    run_test(b, ops::Rope{.x = at("y"),
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

TEST_P(DenseOps, RopeMatchesReference) {
  for (RopePairs pairs : {RopePairs::half, RopePairs::interleaved})
    for (bool inverse : {false, true}) {
      check(RopeCase(0, 2, 4, 1, 2, inverse, pairs));
      check(RopeCase(5, 3, 2, 0, 1, inverse, pairs));
      check(RopeCase(1, 1, 2, 1, 1, inverse, pairs));
      check(RopeCase(7, 3, 10, 2, 3, inverse, pairs));  // some of the heads, some of their elements
      check(RopeCase(5, 2, 7, 2, 3, inverse, pairs));
      check(RopeCase(20, 3, 16, 2, 4, inverse, pairs));
      check(RopeCase(260, 6, 64, 4, 32, inverse, pairs));
      check(RopeCase(9, 4, 6, 4, 0, inverse, pairs));  // no rotated elements
    }
}

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
  ref::HeadQkNormed forward(Values& v) {
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
    run_test(b, ops::HeadQkNormForward{.x = at("x"),
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
    out("dx", {t, all, hd});
    accumulate("dweight", {desc.weights(), hd}, DType::f32);
    gradients = {{"dx", "x"}, {"dweight", "weight"}};
  }
  void run(Device& b) override {
    run_test(b, ops::HeadQkNormBackward{.dy = at("dy"),
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

TEST_P(DenseOps, QkNormMatchesReference) {
  struct {
    Index t, q, k, others, hd, half;
  } const cases[] = {{0, 2, 1, 1, 4, 2},    {1, 1, 1, 1, 2, 1},     {5, 3, 1, 1, 7, 0},     {6, 4, 2, 2, 10, 3},
                     {33, 6, 2, 2, 64, 32}, {3, 2, 2, 0, 256, 128}, {700, 2, 1, 1, 33, 16}, {2, 9, 3, 1, 48, 8},
                     {3, 1, 1, 1, 132, 0},  {1, 1, 1, 0, 255, 1}};
  for (const auto& c : cases)
    for (RopePairs pairs : {RopePairs::half, RopePairs::interleaved}) {
      const HeadQkNorm desc{c.q, c.k, 1e-5f, pairs, c.t % 2 == 0 ? 1.0f : 0.0f};
      check(HeadQkNormForward(c.t, desc, c.others, c.hd, c.half));
      check(HeadQkNormBackward(c.t, desc, c.others, c.hd, c.half));
      // The norm of Command R+. A LayerNorm of two elements has little but their signs.
      if (c.hd < 4) continue;
      const HeadQkNorm layernorm{c.q, c.k, 1e-5f, pairs, desc.offset, NormKind::layernorm, true};
      check(HeadQkNormForward(c.t, layernorm, c.others, c.hd, c.half));
      check(HeadQkNormBackward(c.t, layernorm, c.others, c.hd, c.half));
    }
}

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
  Numbers squares(Values& v) { return added(ref::projection_sums(desc, row, v["x"], v["x"]), v); }
  Numbers forward(Values& v) { return ref::projection_qk_norm(desc, row, v["weight"], v["others"], v["x"]); }

 private:
  static Numbers added(Numbers sums, Values& v) {
    for (std::size_t i = 0; i < v["others"].size(); ++i) sums[i] += v["others"][i];
    return sums;
  }
};

struct ProjectionQkNormForward : ProjectionQkNormCase {
  ProjectionQkNormForward(Index t_, Index q, Index k, Index others, Index ranks)
      : ProjectionQkNormCase(t_, q, k, others, ranks) {
    in("other_x", {t, row});
    in("squares", {t, 2}, squares(values()), DType::f32);
    out("sums", {t, 2}, DType::f32);
    out("y", {t, row});
  }
  void run(Device& b) override {
    run_test(b, ops::ProjectionQkNormSums{.x = at("x"), .y = at("other_x"), .desc = desc, .sums = at("sums")});
    run_test(b, ops::ProjectionQkNormForward{
                    .x = at("x"), .weight = at("weight"), .squares = at("squares"), .desc = desc, .y = at("y")});
  }
  void expect(Values& v) override {
    v["sums"] = ref::projection_sums(desc, row, v["x"], v["other_x"]);
    v["y"] = forward(v);
  }
};

// Backward on a rank whose peers contribute no gradients.
struct ProjectionQkNormBackward : ProjectionQkNormCase {
  ProjectionQkNormBackward(Index t_, Index q, Index k, Index others, Index ranks)
      : ProjectionQkNormCase(t_, q, k, others, ranks) {
    in("dy", {t, row});
    in("squares", {t, 2}, squares(values()), DType::f32);
    in("products", {t, 2}, ref::projection_sums(desc, row, values()["dy"], forward(values())), DType::f32);
    out("dx", {t, row});
    accumulate("dweight", {q + k}, DType::f32);
    gradients = {{"dx", "x"}, {"dweight", "weight"}};
  }
  void run(Device& b) override {
    run_test(b, ops::ProjectionQkNormBackward{.dy = at("dy"),
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

TEST_P(DenseOps, ProjectionQkNormMatchesReference) {
  struct {
    Index t, q, k, others;
  } const cases[] = {{0, 4, 2, 2},   {1, 3, 2, 0},      {5, 7, 3, 3},    {6, 40, 20, 20},
                     {33, 64, 8, 8}, {3, 1000, 250, 1}, {700, 24, 8, 8}, {2, 2048, 512, 512}};
  for (const auto& c : cases)
    for (Index ranks : {1, 3}) {
      check(ProjectionQkNormForward(c.t, c.q, c.k, c.others, ranks));
      check(ProjectionQkNormBackward(c.t, c.q, c.k, c.others, ranks));
    }
}

// ---- attention ----

struct AttentionShape {
  Index b, s, h, k, hd;
};

struct AttentionCase : OpCase {
  AttentionDesc desc;
  AttentionShape a;
  AttentionCase(AttentionDesc d, AttentionShape shape) : desc(d), a(shape) {
    note = fmt::format("causal {} window {} softcap {}", d.mask.causal, d.mask.window, d.softcap);
    in("qkv", {a.b, a.s, a.h + 2 * a.k, a.hd});
    tolerance = gradient_tolerance = 2e-5;
    bf16_tolerance = 2e-2;  // probabilities are rounded too
  }
  Heads q(View qkv) const { return {qkv, 0, a.h}; }
  Heads k(View qkv) const { return {qkv, a.h, a.k}; }
  Heads v(View qkv) const { return {qkv, a.h + a.k, a.k}; }
  ref::Attention forward(Values& v) { return ref::attention(desc, a.b, a.s, a.h, a.k, a.hd, v["qkv"]); }
};

struct AttentionForward : AttentionCase {
  AttentionForward(AttentionDesc d, AttentionShape shape) : AttentionCase(d, shape) {
    out("out", {a.b, a.s, a.h, a.hd});
    out("lse", {a.b, a.h, a.s}, DType::f32);
  }
  void run(Device& b) override {
    const View qkv = at("qkv");
    run_test(b, ops::AttentionForward{
                    .q = q(qkv), .k = k(qkv), .v = v(qkv), .desc = desc, .out = at("out"), .lse = at("lse")});
  }
  void expect(Values& v) override {
    const ref::Attention want = forward(v);
    v["out"] = want.out;
    v["lse"] = want.lse;
  }
};

struct AttentionBackward : AttentionCase {
  AttentionBackward(AttentionDesc d, AttentionShape shape) : AttentionCase(d, shape) {
    const ref::Attention saved = forward(values());
    in("out", {a.b, a.s, a.h, a.hd}, saved.out);
    in("lse", {a.b, a.h, a.s}, saved.lse, DType::f32);
    in("dout", {a.b, a.s, a.h, a.hd});
    out("dqkv", {a.b, a.s, a.h + 2 * a.k, a.hd});
    gradients = {{"dqkv", "qkv"}};
  }
  void run(Device& b) override {
    const View x = at("qkv"), dx = at("dqkv");
    run_test(b, ops::AttentionBackward{.dout = at("dout"),
                                       .q = q(x),
                                       .k = k(x),
                                       .v = v(x),
                                       .out = at("out"),
                                       .lse = at("lse"),
                                       .desc = desc,
                                       .dq = q(dx),
                                       .dk = k(dx),
                                       .dv = v(dx)});
  }
  double loss(Values& v) override { return ref::dot(v["dout"], forward(v).out); }
};

TEST_P(DenseOps, AttentionMatchesReference) {
  const AttentionShape shapes[] = {{0, 3, 2, 1, 4},  {2, 0, 2, 1, 4},   {1, 1, 1, 1, 1},   {2, 5, 2, 1, 3},
                                   {1, 17, 4, 2, 8}, {2, 33, 3, 3, 16}, {1, 70, 2, 1, 33}, {1, 131, 6, 2, 64}};
  for (const AttentionShape& s : shapes)
    for (bool causal : {true, false})
      for (Index window : {0, 1, 5, 64})
        for (float softcap : {0.0f, 2.0f}) {
          const AttentionDesc desc = {1 / std::sqrt(static_cast<float>(s.hd)), softcap, {causal, window}};
          check(AttentionForward(desc, s));
          if (s.s < 20 || window == (s.s < 100 ? 5 : 64)) check(AttentionBackward(desc, s));
        }
}

// ---- optimizer ----

struct ClipCoefficient : OpCase {
  float clip;
  ClipCoefficient(double squares, float c) : clip(c) {
    note = fmt::format("clip {}", c);
    in("squares", {1}, {squares}, DType::f64);
    out("coefficient", {1}, DType::f32);
  }
  void run(Device& b) override {
    run_test(b, ops::ClipCoefficient{.squares = at("squares"), .clip = clip, .coefficient = at("coefficient")});
  }
  void expect(Values& v) override {
    const double norm = std::sqrt(v["squares"][0]);
    v["coefficient"] = {!std::isfinite(norm) ? std::nan("") : clip > 0 && norm > clip ? clip / norm : 1};
  }
};

struct AdamWCase : OpCase {
  ref::AdamW desc;
  AdamWCase(Index n, float decay, double coefficient) : desc{0.9f, 0.95f, 1e-8f, decay} {
    note = fmt::format("coefficient {}", coefficient);
    in("coefficient", {1}, {coefficient}, DType::f32);
    in("step_scalars", {3}, {1e-2, 1 - 0.729, 1 - 0.857375}, DType::f32);
    in("g", {n}, DType::f32);
    in_out("w", {n}, DType::f32);
    in_out("m", {n}, DType::f32);
    Numbers v = normal("v", {n});
    for (double& x : v) x *= x;
    in_out("v", {n}, v, DType::f32);
    if (compute == DType::bf16) in_out("rounded", {n});
  }
  void run(Device& b) override {
    run_test(b, ops::AdamW{.coefficient = at("coefficient"),
                           .step_scalars = at("step_scalars"),
                           .g = at("g"),
                           .beta1 = desc.beta1,
                           .beta2 = desc.beta2,
                           .eps = desc.eps,
                           .weight_decay = desc.weight_decay,
                           .w = at("w"),
                           .m = at("m"),
                           .v = at("v"),
                           .rounded = at("rounded")});
  }
  void expect(Values& v) override {
    if (std::isnan(v["coefficient"][0])) return;
    ref::adamw(desc, v["coefficient"][0], v["step_scalars"], v["g"], v["w"], v["m"], v["v"]);
    if (v.count("rounded")) v["rounded"] = v["w"];
  }
};

struct MomentumUpdate : OpCase {
  MomentumUpdate(Index n, double coefficient) {
    note = fmt::format("coefficient {}", coefficient);
    in("coefficient", {1}, {coefficient}, DType::f32);
    in("g", {n}, DType::f32);
    in_out("m", {n}, DType::f32);
  }
  void run(Device& b) override {
    run_test(b, ops::MomentumUpdate{.coefficient = at("coefficient"), .g = at("g"), .momentum = 0.9f, .m = at("m")});
  }
  void expect(Values& v) override {
    if (!std::isnan(v["coefficient"][0])) ref::momentum_update(0.9f, v["coefficient"][0], v["g"], v["m"]);
  }
};

struct ApplyUpdate : OpCase {
  float decay;
  ApplyUpdate(Index n, float weight_decay, double coefficient) : decay(weight_decay) {
    note = fmt::format("decay {}, coefficient {}", decay, coefficient);
    in("coefficient", {1}, {coefficient}, DType::f32);
    in("lr", {1}, {1e-2}, DType::f32);
    in("update", {n}, DType::f32);
    in_out("w", {n}, DType::f32);
    if (compute == DType::bf16) in_out("rounded", {n});
  }
  void run(Device& b) override {
    run_test(b, ops::ApplyUpdate{.coefficient = at("coefficient"),
                                 .lr = at("lr"),
                                 .update = at("update"),
                                 .weight_decay = decay,
                                 .w = at("w"),
                                 .rounded = at("rounded")});
  }
  void expect(Values& v) override {
    if (std::isnan(v["coefficient"][0])) return;
    ref::apply_update(v["lr"][0], decay, v["update"], v["w"]);
    if (v.count("rounded")) v["rounded"] = v["w"];
  }
};

TEST_P(DenseOps, MomentumAndItsUpdateMatchReference) {
  for (Index n : {0, 1, 63, 1000, 40001})
    for (double factor : {1.0, 0.03, std::nan("")}) {
      check(MomentumUpdate(n, factor));
      for (float decay : {0.0f, 0.1f}) check(ApplyUpdate(n, decay, factor));
    }
}

TEST_P(DenseOps, AdamWMatchesReference) {
  for (Index n : {0, 1, 63, 1000, 40001})
    for (float decay : {0.0f, 0.1f})
      for (double factor : {1.0, 0.03, std::nan("")}) check(AdamWCase(n, decay, factor));
  for (double squares : {0.0, 0.25, 9.0, 1e60, std::nan(""), std::numeric_limits<double>::infinity()})
    for (float clip : {0.0f, 1.0f}) check(ClipCoefficient(squares, clip));
}

// ---- invalid arguments ----

TEST_P(DenseOps, RejectsWrongShapesAndTypes) {
  const auto t = [&](Shape shape, DType dtype = DType::f32) { return device->tensor(shape, dtype); };
  const auto refused = [](const char* operation, const auto& call) {
    try {
      call();
      ADD_FAILURE() << operation << " took wrong operands";
    } catch (const std::logic_error& e) {
      EXPECT_NE(std::string(e.what()).find(operation), std::string::npos) << e.what();
    }
  };
  const Tensor a = t({2, 3}), b = t({4, 3}), c = t({2, 4}), i2 = t({2}, DType::i32), v4 = t({4}), s = t({2, 2});
  // b is not transposed.
  refused("gemm", [&] { ops::run(*device, ops::Gemm{.a = a, .b = b, .c = c}); });
  refused("gemm", [&] { ops::run(*device, ops::Gemm{.a = a, .b = b, .transpose_b = true, .c = a}); });
  refused("gemm", [&] {
    ops::run(*device, ops::Gemm{.a = a, .b = b, .transpose_b = true, .c = View(nullptr, {2, 4}, DType::f32)});
  });
  // Offsets of one expert.
  refused("grouped_gemm", [&] {
    ops::run(*device, ops::GroupedGemm{.x = a, .w = t({5, 4, 3}), .groups = {i2, nullptr}, .y = c});
  });
  // Two types.
  refused("gemm", [&] {
    ops::run(*device, ops::Gemm{.a = t({2, 3}, DType::bf16), .b = b, .transpose_b = true, .c = c});
  });
  refused("norm_forward", [&] { run(*device, ops::NormForward{.x = a, .weight = v4, .y = t({2, 3}), .moments = s}); });
  refused("norm_forward", [&] {
    run(*device, ops::NormForward{.x = a, .weight = t({3}), .desc = {NormKind::none}, .y = t({2, 3}), .moments = s});
  });
  // A gated activation needs a width of 6.
  refused("activation_forward", [&] { run(*device, ops::ActivationForward{.h = a, .y = t({2, 3})}); });
  refused("rope", [&] {
    run(*device, ops::Rope{.x = t({2, 3, 4}), .heads = 4, .positions = i2, .table = t({9, 2, 2})});
  });
  refused("attention_forward", [&] {
    run(*device, ops::AttentionForward{.q = t({1, 2, 3, 4}).view(),
                                       .k = t({1, 2, 1, 4}).view(),
                                       .v = t({1, 2, 1, 4}).view(),
                                       .desc = {},
                                       .out = t({1, 2, 3, 4}),
                                       .lse = t({1, 3})});
  });
  refused("attention_forward", [&] {  // three query heads, two kv heads
    run(*device, ops::AttentionForward{.q = t({1, 2, 3, 4}).view(),
                                       .k = t({1, 2, 2, 4}).view(),
                                       .v = t({1, 2, 2, 4}).view(),
                                       .desc = {},
                                       .out = t({1, 2, 3, 4}),
                                       .lse = t({1, 3, 2})});
  });
  refused("attention_forward", [&] {  // keys of another width
    run(*device, ops::AttentionForward{.q = t({1, 2, 2, 4}).view(),
                                       .k = t({1, 2, 2, 5}).view(),
                                       .v = t({1, 2, 2, 4}).view(),
                                       .desc = {},
                                       .out = t({1, 2, 2, 4}),
                                       .lse = t({1, 2, 2})});
  });
  refused("attention_forward", [&] {  // columns of several heads
    const Tensor wide = t({1, 2, 2, 4});
    const Heads k = Heads(wide.view()).columns(0, 3);
    run(*device,
        ops::AttentionForward{
            .q = t({1, 2, 2, 3}).view(), .k = k, .v = k, .desc = {}, .out = t({1, 2, 2, 3}), .lse = t({1, 2, 2})});
  });
  refused("broadcast_heads", [&] {
    run(*device, ops::BroadcastHeads{.x = t({1, 2, 3, 4}).view(), .y = t({1, 2, 4, 4}).view()});
  });
  refused("reduce_heads", [&] {
    run(*device, ops::ReduceHeads{.x = t({1, 2, 3, 4}).view(), .y = t({1, 2, 2, 4}).view()});
  });
  refused("batched_head_gemm", [&] {  // a weight with another number of heads
    run(*device,
        ops::BatchedHeadGemm{
            .x = t({1, 2, 3, 4}).view(), .w = t({2, 5, 4}), .pass = GemmPass::fprop, .y = t({1, 2, 3, 5}).view()});
  });
  refused("route_forward", [&] {
    run(*device, ops::RouteForward{.logits = c,
                                   .desc = {Score::softmax, 5},
                                   .experts = t({2, 5}, DType::i32),
                                   .weights = t({2, 5}),
                                   .counts = t({1, 4}, DType::i32),
                                   .probability = t({1, 4}),
                                   .z_squared = t({1}, DType::f64)});
  });
  refused("route_forward", [&] {  // two tokens, three segments
    run(*device, ops::RouteForward{.logits = c,
                                   .experts = t({2, 2}, DType::i32),
                                   .weights = s,
                                   .counts = t({3, 4}, DType::i32),
                                   .probability = t({3, 4}),
                                   .z_squared = t({1}, DType::f64)});
  });
  // Ids of type f32.
  refused("embedding_forward", [&] { run(*device, ops::EmbeddingForward{.ids = v4, .table = b, .y = t({4, 3})}); });
  refused("adamw", [&] {
    run(*device, ops::AdamW{.coefficient = t({1}),
                            .step_scalars = t({3}),
                            .g = v4,
                            .beta1 = 0,
                            .beta2 = 0,
                            .eps = 0,
                            .weight_decay = 0,
                            .w = t({4}),
                            .m = t({3}),
                            .v = t({4})});
  });
  refused("adamw", [&] {
    run(*device, ops::AdamW{.coefficient = t({1}),
                            .step_scalars = t({2}),
                            .g = v4,
                            .beta1 = 0,
                            .beta2 = 0,
                            .eps = 0,
                            .weight_decay = 0,
                            .w = t({4}),
                            .m = t({4}),
                            .v = t({4})});
  });
  refused("momentum_update",
          [&] { run(*device, ops::MomentumUpdate{.coefficient = t({1}), .g = v4, .momentum = 0, .m = t({3})}); });
  refused("apply_update", [&] {  // updates of type bf16
    run(*device,
        ops::ApplyUpdate{
            .coefficient = t({1}), .lr = t({1}), .update = t({4}, DType::bf16), .weight_decay = 0, .w = t({4})});
  });
  refused("fill", [&] { ops::run(*device, ops::Fill{.x = i2, .value = 1.0f}); });
  refused("copy", [&] { ops::run(*device, ops::Copy{.x = a, .y = c}); });
}

}  // namespace
}  // namespace sy::test
