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
#include "src/numerics/cases/ffn.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

class FfnOps : public DeviceOps {};
INSTANTIATE_TEST_SUITE_P(Targets, FfnOps, testing::ValuesIn(targets), target_name);

constexpr FfnActivation ffn_kinds[] = {{Activation::silu, true, 1.3f},
                                       {Activation::silu, false},
                                       {Activation::gelu, true},
                                       {Activation::relu2, false},
                                       {Activation::silu_clamped, true, 1.702f, 0.7f}};

template <class Case, class Check>
void ffn_cases(const Device& device, DType c, const Check& check) {
  for (const FfnActivation& desc : ffn_kinds)
    for (const FfnSizes& sizes : ffn_sizes)
      for (bool by_index : {false, true})
        for (bool more : {false, true})
          if (!by_index || (device.supports_gathered_rows(c, {sizes.d, sizes.f}) && sizes.rows > 0))
            check(Case(desc, sizes, by_index, more));
}
TEST_P(FfnOps, ForwardMatchesReference) {
  ffn_cases<FfnForward>(*device, GetParam().dtype, [&](auto&& c) { check(c); });
}
TEST_P(FfnOps, BackwardMatchesReference) {
  ffn_cases<FfnBackward>(*device, GetParam().dtype, [&](auto&& c) { check(c); });
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
            device->supports_gathered_rows(c(), {d, f}) ? GatheredRows(x, by.view()) : GatheredRows(gathered);
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

// Backward also writes the activation, to memory of its own or over its gradient.
TEST_P(FfnBits, BackwardRepeatsTheActivation) {
  for (const auto& [rows, f] : {std::pair<Index, Index>{1, 1}, {37, 77}, {130, 352}}) {
    const Tensor dy = random("dy", {rows, f}, c()), scale = random("scale", {rows}, DType::f32);
    for (Activation act : every_activation)
      for (bool gated : {true, false})
        for (bool scaled : {true, false}) {
          const FfnActivation desc{act, gated, 1.1f, 2.0f};
          const Tensor h = random("h", {rows, gated ? 2 * f : f}, c()), y = device->tensor({rows, f}, c()),
                       dh = device->tensor(h.shape(), c()), dscale = device->tensor({rows});
          const ConstView row_scale = scaled ? ConstView(scale) : ConstView();
          run(*device, ops::ActivationForward{.h = h, .row_scale = row_scale, .activation = desc, .y = y});
          run(*device,
              ops::ActivationBackward{
                  .dy = dy, .h = h, .row_scale = row_scale, .activation = desc, .dh = dh, .drow_scale = dscale});
          const auto expected = bits({&y, &dh, &dscale});
          SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(act) << " gated " << gated << " scaled "
                                          << scaled << " rows " << rows);
          on_threads([&] {
            for (bool in_place : {false, true}) {
              for (const Tensor* t : {&y, &dh, &dscale}) run(*device, ops::Fill{.x = *t, .value = 0});
              if (in_place) run(*device, ops::Copy{.x = dy, .y = y});
              run(*device, ops::ActivationBackward{.dy = in_place ? y : dy,
                                                   .h = h,
                                                   .row_scale = row_scale,
                                                   .activation = desc,
                                                   .dh = dh,
                                                   .drow_scale = dscale,
                                                   .y = y});
              EXPECT_EQ(bits({&y, &dh, &dscale}), expected) << "in place " << in_place;
            }
          });
        }
  }
}

TEST_P(FfnBits, EqualPermutedRowsForIndexedRows) {
  const std::vector<std::int32_t> host = {0, 130, 130, 131, 190};
  const Index experts = std::ssize(host) - 1, rows = host.back(), tokens = 97;
  const Tensor offsets = integers(host);
  const GroupOffsets groups{offsets, host.data()};
  for (const auto& [n, q] : {std::pair<Index, Index>{45, 67}, {1, 1}, {160, 400}}) {
    if (!device->supports_gathered_rows(c(), {n, q})) continue;
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
