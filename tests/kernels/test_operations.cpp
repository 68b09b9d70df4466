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
#include "src/numerics/cases/attention.h"
#include "src/numerics/cases/elementwise.h"
#include "src/numerics/cases/ffn.h"
#include "src/numerics/cases/gemm.h"
#include "src/numerics/cases/loss.h"
#include "src/numerics/cases/norm.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

class DenseOps : public DeviceOps {};
INSTANTIATE_TEST_SUITE_P(Targets, DenseOps, testing::ValuesIn(targets), target_name);

// ---- memory ----

TEST_P(DenseOps, ElementwiseMatchesReference) {
  for (Index n : {0, 1, 7, 1000, 16384, 16385, 100003}) {
    check(FillCase(n));
    check(CopyCase(n));
    check(ConvertCase(n));
    check(AddCase(n));
    check(ScaleCase(n));
    check(SumSquaresCase(n));
    for (DType type : {DType::f32, DType::bf16}) check(BitSumCase(n, type));
  }
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

TEST_P(DenseOps, GemmMatchesReference) {
  const Index shapes[][3] = {{0, 3, 4},    {3, 0, 4},    {3, 4, 0},      {1, 1, 1},      {1, 65, 33},   {5, 7, 9},
                             {16, 16, 16}, {67, 3, 130}, {129, 97, 300}, {300, 130, 67}, {40, 520, 600}};
  for (const auto& s : shapes)
    for (int flags = 0; flags < 8; ++flags)
      for (DType c : {OpCase::compute, DType::f32})
        check(GemmCase({(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0}, s[0], s[1], s[2], c));
}

TEST_P(DenseOps, GemmWithAddendMatchesReference) {
  const Index shapes[][3] = {{0, 3, 4}, {3, 4, 0}, {1, 1, 1}, {5, 7, 9}, {16, 16, 16}, {129, 98, 300}, {40, 520, 64}};
  for (const auto& s : shapes)
    for (int flags = 0; flags < 8; ++flags)
      for (DType c : {OpCase::compute, DType::f32})
        check(SumCase({(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0}, s[0], s[1], s[2], c));
}

// Number of rows of each expert; the sum is R.
const std::vector<Index> row_counts[] = {{0}, {5}, {0, 0, 0}, {1, 0, 2}, {0, 7, 0, 130, 1, 0}, {64, 65, 63, 0}};

template <class Case, class Check>
void grouped_cases(const Check& check) {
  for (const auto& counts : row_counts)
    for (const auto& [n, q] :
         {std::pair<Index, Index>{1, 1}, {0, 3}, {3, 0}, {5, 3}, {33, 65}, {40, 24}, {264, 72}, {40, 328}})
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

TEST_P(DenseOps, GroupedBiasMatchesReference) {
  for (const auto& counts : row_counts)
    for (bool scaled : {false, true})
      for (const auto& [n, first, width] :
           {std::tuple<Index, Index, Index>{1, 0, 1}, {0, 2, 3}, {3, 2, 5}, {40, 0, 40}, {33, 7, 65}, {5, 0, 300}}) {
        check(GroupedBiasForward(counts, n, first, width, scaled));
        check(GroupedBiasBackward(counts, n, first, width, scaled));
      }
}

TEST_P(DenseOps, BiasMatchesReference) {
  for (Rows s : many_rows) {
    check(BiasForward(s));
    check(BiasBackward(s));
  }
}

// ---- norms ----

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

TEST_P(DenseOps, ActivationMatchesReference) {
  for (FfnActivation desc : all_activations)
    for (bool gated : {false, true})
      for (bool scaled : {false, true})
        for (Rows s : {Rows{0, 4}, {3, 0}, {1, 1}, {5, 7}, {67, 33}, {130, 257}}) {
          desc.gated = gated;
          for (double deviation : {1.0, 40.0}) check(ActivationForward(desc, s, scaled, deviation));
          for (bool activated : {false, true}) check(ActivationBackward(desc, s, scaled, activated));
        }
}

TEST_P(DenseOps, XieluMatchesReference) {
  for (Rows s : {Rows{0, 4}, {3, 0}, {1, 1}, {5, 7}, {67, 33}, {130, 257}}) {
    for (double shift : {0.0, -30.0, 9.0})
      for (double deviation : {1e-3, 1.0, 40.0}) check(XieluForward(s, shift, deviation));
    for (bool learned : {false, true}) check(XieluBackward(s, 0, learned));
  }
}

// ---- positions ----

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

TEST_P(DenseOps, ProjectionQkNormMatchesReference) {
  struct {
    Index t, q, k, others;
  } const cases[] = {{0, 4, 2, 2},   {1, 3, 2, 0},      {5, 7, 3, 3},    {6, 40, 20, 20},
                     {33, 64, 8, 8}, {3, 1000, 250, 1}, {700, 24, 8, 8}, {2, 2048, 512, 512}};
  for (const auto& c : cases)
    for (Index ranks : {1, 3}) {
      check(ProjectionQkNormSums(c.t, c.q, c.k, c.others, ranks));
      check(ProjectionQkNormForward(c.t, c.q, c.k, c.others, ranks));
      check(ProjectionQkNormBackward(c.t, c.q, c.k, c.others, ranks));
    }
}

// ---- attention ----

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

TEST_P(DenseOps, MomentumAndItsUpdateMatchReference) {
  for (Index n : {0, 1, 63, 1000, 40001})
    for (double factor : {1.0, 0.03, std::nan("")})
      for (DType moments : {DType::f32, DType::bf16}) {
        for (bool nesterov : {false, true}) check(MomentumUpdate(n, factor, moments, nesterov));
        for (float decay : {0.0f, 0.1f}) check(ApplyUpdate(n, decay, factor, moments));
      }
}

TEST_P(DenseOps, AdamWMatchesReference) {
  for (Index n : {0, 1, 63, 1000, 40001})
    for (float decay : {0.0f, 0.1f})
      for (double factor : {1.0, 0.03, std::nan("")})
        for (DType moments : {DType::f32, DType::bf16}) check(AdamWCase(n, decay, factor, moments));
  for (double squares : {0.0, 0.25, 9.0, 1e60, std::nan(""), std::numeric_limits<double>::infinity()})
    for (float clip : {0.0f, 1.0f})
      for (double limit : {0.0, 2.99, 3.0, std::numeric_limits<double>::infinity()})
        check(ClipCoefficient(squares, clip, limit));
}

// Compares the sums with those of the bytes. If the coefficient is NaN, there is no update.
TEST_P(DenseOps, AdamWSumsBitsBeforeAndAfter) {
  for (Index n : {1, 63, 16384, 40001})
    for (float factor : {0.5f, std::nanf("")})
      for (DType moments : {DType::f32, DType::bf16})
        for (bool rounds : {false, true}) {
          const auto filled = [&](Shape shape, float value, DType type = DType::f32) {
            Tensor x = device->tensor(shape, type);
            std::vector<float> host(static_cast<std::size_t>(shape.elements()));
            for (std::size_t i = 0; i < host.size(); ++i) host[i] = value + static_cast<float>(i % 7) / 8;
            Tensor wide = device->tensor(shape);
            device->to_device(host.data(), wide);
            if (type == DType::bf16)
              run(*device, ops::Convert{.x = wide, .y = x});
            else
              device->to_device(host.data(), x);
            return x;
          };
          const Tensor w = filled({n}, -2), m = filled({n}, 1, moments), v = filled({n}, 3, moments),
                       rounded = rounds ? filled({n}, -1, DType::bf16) : Tensor{},
                       sums = device->tensor({2}, DType::i32);
          const auto sum_of_bits = [&] {
            std::uint32_t sum = 0;
            for (const View& x : {w.view(), m.view(), v.view(), rounded.view()}) {
              if (!x) continue;
              std::vector<std::byte> bytes(static_cast<std::size_t>(x.size_bytes()));
              device->to_host(x, bytes.data());
              device->synchronize();
              const std::size_t width = static_cast<std::size_t>(info(x.dtype()).bytes);
              for (std::size_t i = 0; i < bytes.size(); ++i)
                sum += static_cast<std::uint32_t>(bytes[i]) << 8 * (i % width);
            }
            return static_cast<std::int32_t>(sum);
          };
          const Tensor coefficient = filled({1}, factor), scalars = filled({3}, 0.125f), g = filled({n}, 0.25f);
          const std::int32_t before = sum_of_bits();
          run(*device, ops::AdamW{.coefficient = coefficient,
                                  .step_scalars = scalars,
                                  .g = g,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .eps = 1e-8f,
                                  .weight_decay = 0.1f,
                                  .w = w,
                                  .m = m,
                                  .v = v,
                                  .rounded = rounded,
                                  .bit_sums = sums});
          std::int32_t got[2];
          device->to_host(sums, got);
          device->synchronize();
          EXPECT_EQ(got[0], before) << n;
          EXPECT_EQ(got[1], sum_of_bits()) << n;
          EXPECT_EQ(got[0] == got[1], std::isnan(factor)) << n;
        }
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
  // Its parameters are learned.
  refused("activation_forward", [&] {
    run(*device, ops::ActivationForward{.h = a, .activation = {Activation::xielu, false}, .y = a});
  });
  refused("xielu_forward", [&] { run(*device, ops::XieluForward{.h = a, .parameters = i2, .y = a}); });
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
  refused("apply_update", [&] {  // updates of type i32
    run(*device,
        ops::ApplyUpdate{
            .coefficient = t({1}), .lr = t({1}), .update = t({4}, DType::i32), .weight_decay = 0, .w = t({4})});
  });
  refused("fill", [&] { ops::run(*device, ops::Fill{.x = i2, .value = 1.0f}); });
  refused("copy", [&] { ops::run(*device, ops::Copy{.x = a, .y = c}); });
}

}  // namespace
}  // namespace sy::test
