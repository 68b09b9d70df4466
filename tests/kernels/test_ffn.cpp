// GEMMs of an FFN with fused activation, and GEMMs that read rows through an index (op_case.h).
// They must also be bitwise equal to the separate operations, for any number of threads.
#include <omp.h>

#include <functional>

#include "kernels/ops/activation.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/ffn.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/grouped_gemm.h"
#include "kernels/ops/permute.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

namespace ref = reference;

class FfnOps : public DeviceOps {};
INSTANTIATE_TEST_SUITE_P(Targets, FfnOps, testing::ValuesIn(targets), target_name);

constexpr FfnActivation ffn_kinds[] = {{Activation::silu, true, 1.3f},
                                       {Activation::silu, false},
                                       {Activation::gelu, true},
                                       {Activation::relu2, false},
                                       {Activation::silu_clamped, true, 1.702f, 0.7f}};

// counts: number of rows of each expert; empty for a single matrix.
struct FfnSizes {
  std::vector<Index> counts;
  Index rows, d, f;
  bool stack() const { return !counts.empty(); }
  Index experts() const { return std::max<Index>(1, std::ssize(counts)); }
};
const FfnSizes ffn_sizes[] = {{{}, 0, 3, 4},   {{}, 1, 1, 1},     {{}, 7, 5, 3},   {{}, 51, 6, 70},
                              {{}, 9, 400, 6}, {{0, 0}, 0, 4, 5}, {{1}, 1, 9, 16}, {{0, 7, 0, 50, 1}, 58, 5, 17}};

struct FfnCase : OpCase {
  FfnActivation desc;
  FfnSizes s;
  Index width, tokens;
  bool indexed;
  std::vector<std::int32_t> host;

  FfnCase(FfnActivation a, const FfnSizes& sizes, bool by_index)
      : desc(a),
        s(sizes),
        width(a.gated ? 2 * sizes.f : sizes.f),
        tokens(by_index ? 40 : sizes.rows),
        indexed(by_index) {
    note = fmt::format("activation {} {}", static_cast<int>(a.act), a.gated ? "gated" : "plain");
    host.push_back(0);
    for (Index n : s.counts) host.push_back(host.back() + static_cast<std::int32_t>(n));
    if (s.stack()) in("offsets", {s.experts() + 1}, Numbers(host.begin(), host.end()), DType::i32);
    if (indexed) in("index", {s.rows}, whole("index", {s.rows}, 0, tokens), DType::i32);
    tolerance = gradient_tolerance = 2e-5;
    bf16_tolerance = 0.1;  // products of large rounded values of h; FfnBits compares exactly
  }
  GroupOffsets groups() const { return s.stack() ? GroupOffsets{at("offsets"), host.data()} : GroupOffsets{}; }
  Shape of_experts(Index rows, Index cols) const {
    return s.stack() ? Shape{s.experts(), rows, cols} : Shape{rows, cols};
  }
  Numbers offsets() const {
    return s.stack() ? Numbers(host.begin(), host.end()) : Numbers{0, static_cast<double>(s.rows)};
  }
  // Returns the rows of x ([tokens, d]) that the GEMM reads.
  Numbers permuted(Values& v, const std::string& x) { return indexed ? ref::permute(s.d, v[x], v["index"]) : v[x]; }
  Numbers activated(Values& v) { return ref::ffn_activation(desc, s.rows, s.f, v["h"], v["row_scale"]); }
};

struct FfnForward : FfnCase {
  FfnForward(FfnActivation a, const FfnSizes& sizes, bool by_index, bool biased) : FfnCase(a, sizes, by_index) {
    in("x", {tokens, s.d});
    in("w", of_experts(width, s.d));
    in_if(biased, "bias", s.stack() ? Shape{s.experts(), width} : Shape{width});
    in_if(biased, "row_scale", {s.rows}, DType::f32);
    out("h", {s.rows, width});
    out("y", {s.rows, s.f});
  }
  void run(Device& b) override {
    run_test(b, ops::FfnForward{.x = GatheredRows(at("x"), at("index")),
                                .w = at("w"),
                                .bias = at("bias"),
                                .groups = groups(),
                                .row_scale = at("row_scale"),
                                .activation = desc,
                                .h = at("h"),
                                .y = at("y")});
  }
  void expect(Values& v) override {
    v["h"] = ref::grouped_gemm(width, s.d, permuted(v, "x"), v["w"], offsets());
    if (!v["bias"].empty()) v["h"] = ref::grouped_bias(width, 0, width, v["bias"], {}, offsets(), v["h"]);
    v["y"] = activated(v);
  }
};

struct FfnBackward : FfnCase {
  FfnBackward(FfnActivation a, const FfnSizes& sizes, bool by_index, bool scaled) : FfnCase(a, sizes, by_index) {
    Numbers h = normal("h", {s.rows, width});
    for (double& x : h)
      for (double corner : {0.0, static_cast<double>(desc.limit)})  // kinks of the function
        if (std::abs(std::abs(x) - corner) < 0.01) x = 0.5;
    // The gradient with respect to the activation's output is rounded.
    if (compute == DType::bf16) gradient_tolerance = 0.01;
    in("dout", {tokens, s.d});
    in("w", of_experts(s.d, s.f));
    in("h", {s.rows, width}, h);
    in_if(scaled, "row_scale", {s.rows}, DType::f32);
    out("dh", {s.rows, width});
    out("y", {s.rows, s.f});
    gradients = {{"dh", "h"}};
    if (!scaled) return;
    out("drow_scale", {s.rows}, DType::f32);
    gradients.push_back({"drow_scale", "row_scale"});
  }
  void run(Device& b) override {
    run_test(b, ops::FfnBackward{.dout = GatheredRows(at("dout"), at("index")),
                                 .w = at("w"),
                                 .groups = groups(),
                                 .h = at("h"),
                                 .row_scale = at("row_scale"),
                                 .activation = desc,
                                 .dh = at("dh"),
                                 .drow_scale = at("drow_scale"),
                                 .y = at("y")});
  }
  void expect(Values& v) override { v["y"] = activated(v); }
  double loss(Values& v) override {
    return ref::dot(permuted(v, "dout"), ref::grouped_gemm(s.d, s.f, activated(v), v["w"], offsets()));
  }
};

template <class Case, class Check>
void ffn_cases(const Device& device, const Check& check) {
  for (const FfnActivation& desc : ffn_kinds)
    for (const FfnSizes& sizes : ffn_sizes)
      for (bool by_index : {false, true})
        for (bool more : {false, true})
          if (!by_index || (device.supports_gathered_rows() && sizes.rows > 0))
            check(Case(desc, sizes, by_index, more));
}
TEST_P(FfnOps, ForwardMatchesReference) {
  ffn_cases<FfnForward>(*device, [&](auto&& c) { check(c); });
}
TEST_P(FfnOps, BackwardMatchesReference) {
  ffn_cases<FfnBackward>(*device, [&](auto&& c) { check(c); });
}

// ---- bitwise equality ----

class FfnBits : public FfnOps {
 protected:
  DType c() const { return GetParam().dtype; }
  Tensor random(const char* name, Shape shape, DType type) {
    const RandomStream stream(7, name);
    std::vector<float> x(shape.elements());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(stream.normal(i));
    const Tensor exact = device->tensor(shape);
    if (!x.empty()) device->to_device(x.data(), exact);
    Tensor t = device->tensor(shape, type);
    run(*device, ops::Convert{.x = exact, .y = t});
    return t;
  }
  Tensor integers(const std::vector<std::int32_t>& values) {
    Tensor t = device->tensor({std::ssize(values)}, DType::i32);
    device->to_device(values.data(), t);
    return t;
  }
  std::vector<std::byte> bits(std::initializer_list<const Tensor*> tensors) {
    device->synchronize();
    std::vector<std::byte> all;
    for (const Tensor* t : tensors) {
      const std::size_t at = all.size();
      all.resize(at + static_cast<std::size_t>(t->size_bytes()));
      if (t->size_bytes() > 0) device->to_host(*t, all.data() + at);
    }
    return all;
  }
  // Runs the body on 1, 2, 3 and 5 threads; once for devices.
  void on_threads(const std::function<void()>& body) {
    const int before = omp_get_max_threads();
    for (int n : {1, 2, 3, 5}) {
      SCOPED_TRACE(testing::Message() << n << " threads");
      if (device->on_host()) omp_set_num_threads(n);
      body();
    }
    omp_set_num_threads(before);
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, FfnBits, testing::ValuesIn(targets), target_name);

constexpr Activation every_activation[] = {Activation::relu,     Activation::gelu,         Activation::gelu_tanh,
                                           Activation::silu,     Activation::relu2,        Activation::sigmoid,
                                           Activation::identity, Activation::silu_clamped, Activation::hardtanh};

// Sizes that several tasks share, widths that are no multiples of panels and epilogue columns,
// an expert with one row.
TEST_P(FfnBits, EqualSeparateOperations) {
  struct {
    std::vector<std::int32_t> offsets;
    Index d, f;
  } const sizes[] = {{{0, 300, 300, 301, 420}, 96, 352}, {{0, 65, 130}, 401, 77}, {{0, 1}, 8, 5}, {{0, 900}, 64, 161}};
  for (const auto& [host, d, f] : sizes) {
    const Index experts = std::ssize(host) - 1, rows = host.back(), tokens = 211;
    const Tensor offsets = integers(host);
    const GroupOffsets groups{offsets, host.data()};
    std::vector<std::int32_t> index(rows);
    for (Index r = 0; r < rows; ++r) index[r] = static_cast<std::int32_t>(RandomStream(7, "index").bits(r) % tokens);
    const Tensor by = integers(index), x = random("x", {tokens, d}, c()), gathered = device->tensor({rows, d}, c()),
                 scale = random("scale", {rows}, DType::f32), down = random("down", {experts, d, f}, c());
    run(*device, ops::Permute{.x = x, .index = by, .y = gathered});
    for (Activation act : every_activation)
      for (bool gated : {true, false}) {
        if (rows > 200 && act != Activation::silu) continue;
        const FfnActivation desc{act, gated, 1.1f, 2.0f};
        const Index width = gated ? 2 * f : f;
        const auto zeros = [&](Index columns, DType type) { return device->tensor({rows, columns}, type); };
        const Tensor up = random("up", {experts, width, d}, c()), h = zeros(width, c()), y = zeros(f, c()),
                     dh = zeros(width, c()), again = zeros(f, c()), dscale = device->tensor({rows}), da = zeros(f, c());
        run(*device, ops::GroupedGemm{.x = gathered, .w = up.view(), .groups = groups, .y = h});
        run(*device, ops::ActivationForward{.h = h, .row_scale = scale, .activation = desc, .y = y});
        run(*device, ops::GroupedGemmDgrad{.dy = gathered, .w = down.view(), .groups = groups, .dx = da});
        run(*device, ops::ActivationBackward{
                         .dy = da, .h = h, .row_scale = scale, .activation = desc, .dh = dh, .drow_scale = dscale});
        const auto expected = bits({&h, &y, &dh, &dscale, &y});

        Weight packed_up(up.view()), packed_down(down.view());
        Tensor up_form, down_form;
        const auto pack = [&](Weight& w, GemmPass pass, Tensor& form, PackedWeight& to) {
          const Index bytes = device->packed_weight_bytes(w.values.shape(), c(), pass, WeightFormat::native);
          if (bytes == 0) return;
          form = device->tensor({bytes}, DType::u8);
          run(*device, ops::PackWeight{.weight = w.values, .pass = pass, .packed = form});
          to.elements = form;
        };
        pack(packed_up, GemmPass::fprop, up_form, packed_up.packed_fprop);
        pack(packed_down, GemmPass::dgrad, down_form, packed_down.packed_dgrad);
        const GatheredRows permuted =
            device->supports_gathered_rows() ? GatheredRows(x, by.view()) : GatheredRows(gathered);
        SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(act) << " gated " << gated << " d " << d
                                        << " f " << f);
        on_threads([&] {
          for (bool packed : {false, true}) {
            for (const Tensor* t : {&h, &y, &dh, &again, &dscale}) run(*device, ops::Fill{.x = *t, .value = 0});
            run(*device, ops::FfnForward{.x = permuted,
                                         .w = packed ? packed_up : Weight(up.view()),
                                         .groups = groups,
                                         .row_scale = scale,
                                         .activation = desc,
                                         .h = h,
                                         .y = y});
            run(*device, ops::FfnBackward{.dout = permuted,
                                          .w = packed ? packed_down : Weight(down.view()),
                                          .groups = groups,
                                          .h = h,
                                          .row_scale = scale,
                                          .activation = desc,
                                          .dh = dh,
                                          .drow_scale = dscale,
                                          .y = again});
            EXPECT_EQ(bits({&h, &y, &dh, &dscale, &again}), expected) << "packed " << packed;
          }
        });
      }
  }
}

TEST_P(FfnBits, EqualPermutedRowsForIndexedRows) {
  if (!device->supports_gathered_rows()) return;
  const std::vector<std::int32_t> host = {0, 130, 130, 131, 190};
  const Index experts = std::ssize(host) - 1, rows = host.back(), tokens = 97;
  const Tensor offsets = integers(host);
  const GroupOffsets groups{offsets, host.data()};
  for (const auto& [n, q] : {std::pair<Index, Index>{45, 67}, {1, 1}, {160, 400}}) {
    std::vector<std::int32_t> index(rows);
    for (Index r = 0; r < rows; ++r) index[r] = static_cast<std::int32_t>(RandomStream(7, "by").bits(r) % tokens);
    const Tensor by = integers(index), x = random("x", {tokens, q}, c()), dy = random("dy", {tokens, n}, c()),
                 w = random("w", {experts, n, q}, c()), xs = device->tensor({rows, q}, c()),
                 dys = device->tensor({rows, n}, c());
    run(*device, ops::Permute{.x = x, .index = by, .y = xs});
    run(*device, ops::Permute{.x = dy, .index = by, .y = dys});
    const auto products = [&](const GatheredRows& x_rows, const GatheredRows& dy_rows) {
      const Tensor y = device->tensor({rows, n}, c()), dx = device->tensor({rows, q}, c()),
                   dw = device->tensor({experts, n, q});
      run(*device, ops::GroupedGemm{.x = x_rows, .w = w.view(), .groups = groups, .y = y});
      run(*device, ops::GroupedGemmDgrad{.dy = dy_rows, .w = w.view(), .groups = groups, .dx = dx});
      run(*device, ops::GroupedGemmWgrad{.dy = dy_rows, .x = x_rows, .groups = groups, .dw = dw});
      return bits({&y, &dx, &dw});
    };
    const auto expected = products(xs, dys);
    on_threads([&] {
      EXPECT_EQ(products(GatheredRows(x, by.view()), GatheredRows(dy, by.view())), expected);
      EXPECT_EQ(products(xs, GatheredRows(dy, by.view())), expected);
      EXPECT_EQ(products(GatheredRows(x, by.view()), dys), expected);
    });
  }
}

// A GEMM with an addend must be bitwise equal to a copy of the addend and an accumulating GEMM.
// Not for cuda: cuBLAS may use different kernels.
class CpuBits : public FfnBits {};
INSTANTIATE_TEST_SUITE_P(Targets, CpuBits, testing::Values(targets[0], targets[2]), target_name);

TEST_P(CpuBits, EqualACopiedAddend) {
  for (const auto& [m, n, k] :
       {std::tuple<Index, Index, Index>{130, 65, 33}, {1, 1, 1}, {700, 40, 900}, {0, 3, 2}, {5, 7, 0}}) {
    const Tensor a = random("a", {m, k}, c()), w = random("w", {n, k}, c());
    for (DType type : {c(), DType::f32}) {
      const Tensor addend = random("addend", {m, n}, type), y = device->tensor({m, n}, type),
                   sum = device->tensor({m, n}, type);
      run(*device, ops::Copy{.x = addend, .y = y});
      run(*device, ops::Gemm{.a = a, .b = w.view(), .transpose_b = true, .accumulate = true, .c = y});
      const auto expected = bits({&y, &addend});
      on_threads([&] {
        run(*device, ops::Fill{.x = sum, .value = 0});
        run(*device, ops::Gemm{.a = a, .b = w.view(), .addend = addend, .transpose_b = true, .c = sum});
        EXPECT_EQ(bits({&sum, &addend}), expected);
        run(*device, ops::Copy{.x = addend, .y = sum});
        run(*device, ops::Gemm{.a = a, .b = w.view(), .addend = sum, .transpose_b = true, .c = sum});
        EXPECT_EQ(bits({&sum, &addend}), expected);
      });
    }
  }
}

}  // namespace
}  // namespace sy::test
