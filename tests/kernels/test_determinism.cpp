// Two exact guarantees of kernels/device.h. A result is bitwise the same for any number of
// threads. A row is bitwise the same for any other rows in its call.
#include <gtest/gtest.h>
#include <omp.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/bias.h"
#include "kernels/ops/capacity.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/grouped_gemm.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/qk_norm.h"
#include "kernels/ops/route.h"
#include "kernels/philox.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

// Runs operations, and records the bits of their outputs.
class Recorder {
 public:
  // c: the type of weights and activations.
  Recorder(Device& device, DType type) : c(type), device_(device) {}

  Tensor normal(const char* name, Shape shape) {
    const RandomStream stream(5, name);
    std::vector<float> x(shape.elements());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(stream.normal(i));
    return put(shape, x);
  }
  // Returns the same values, converted to type c.
  Tensor operand(const char* name, Shape shape) {
    const Tensor exact = normal(name, shape);
    Tensor t = device_.tensor(shape, c);
    run(device_, ops::Convert{.x = exact, .y = t});
    return t;
  }
  template <class T>
  Tensor put(Shape shape, const std::vector<T>& values) {
    Tensor t = device_.tensor(shape, DTypeOf<T>::value);
    device_.to_device(values.data(), t);
    return t;
  }
  void record(const char* name, ConstView v) {
    device_.synchronize();
    std::vector<std::byte> bytes(v.size_bytes());
    device_.to_host(v, bytes.data());
    results.push_back({name, std::move(bytes)});
  }

  const DType c;
  std::vector<std::pair<std::string, std::vector<std::byte>>> results;

 private:
  Device& device_;
};

// Runs all operations that sum, with sizes that span several ranges and tiles and divide none.
void run_all(Device& b, Recorder& r) {
  constexpr Index t = 1003, d = 161, e = 13, k = 3, v = 517, n = 70001;
  const DType c = r.c;
  const auto zeros = [&](Shape shape, DType dtype = DType::f32) { return b.tensor(shape, dtype); };
  const Tensor x = r.operand("x", {t, d}), dy = r.operand("dy", {t, d}), w = r.operand("w", {d});

  const Tensor sum = zeros({1}, DType::f64);
  run(b, ops::SumSquares{.x = r.normal("flat", {n}), .out = sum});
  r.record("sum_squares", sum);

  const Tensor product = zeros({t, v}), rounded = zeros({t, v}, c), weight_gradient = zeros({v, d}),
               table = r.operand("table", {v, d});
  run(b, ops::Gemm{.a = x, .b = table, .transpose_b = true, .c = product});
  run(b, ops::Gemm{.a = x, .b = table, .transpose_b = true, .c = rounded});
  run(b, ops::Gemm{.a = rounded, .b = x, .transpose_a = true, .accumulate = true, .c = weight_gradient});
  r.record("gemm", product);
  r.record("gemm, rounded", rounded);
  r.record("gemm, long sum", weight_gradient);

  for (NormKind kind : {NormKind::rmsnorm, NormKind::layernorm}) {
    const Tensor y = zeros({t, d}, c), moments = zeros({t, 2}), dx = zeros({t, d}, c), dw = zeros({d}), db = zeros({d});
    run(b, ops::NormForward{.x = x, .weight = w, .bias = w, .desc = {kind}, .y = y, .moments = moments});
    run(b,
        ops::NormBackward{
            .dy = dy, .x = x, .weight = w, .moments = moments, .desc = {kind}, .dx = dx, .dweight = dw, .dbias = db});
    for (const Tensor* out : {&y, &dx, &dw, &db}) r.record("norm", *out);
  }
  const HeadQkNorm each{3, 2, 1e-5f};
  const Tensor heads = r.operand("heads", {t, 6, 24}), dheads = r.operand("dheads", {t, 6, 24}),
               qk_weight = r.operand("qk_weight", {2, 24}), inverse = zeros({t, 5}), turned = zeros({t, 6, 24}, c),
               turned_back = zeros({t, 6, 24}, c), dqk_weight = zeros({2, 24});
  run(b, ops::HeadQkNormForward{.x = heads, .weight = qk_weight, .desc = each, .y = turned, .inverse = inverse});
  run(b, ops::HeadQkNormBackward{.dy = dheads,
                                 .x = heads,
                                 .weight = qk_weight,
                                 .inverse = inverse,
                                 .desc = each,
                                 .dx = turned_back,
                                 .dweight = dqk_weight});
  for (const Tensor* out : {&turned, &turned_back, &dqk_weight}) r.record("qk_norm", *out);
  const ProjectionQkNorm whole{72, 48, 72, 48, 1e-5f};
  const auto row = [&](const Tensor& projected) { return projected.view().reshape({t, 144}); };
  const Tensor whole_weight = r.operand("whole_weight", {120}), squares = zeros({t, 2}), products = zeros({t, 2}),
               dwhole = zeros({t, 144}, c), dwhole_weight = zeros({120});
  run(b, ops::ProjectionQkNormSums{.x = row(heads), .y = row(heads), .desc = whole, .sums = squares});
  run(b, ops::ProjectionQkNormSums{.x = row(dheads), .y = row(turned), .desc = whole, .sums = products});
  run(b, ops::ProjectionQkNormBackward{.dy = row(dheads),
                                       .x = row(heads),
                                       .weight = whole_weight,
                                       .squares = squares,
                                       .products = products,
                                       .desc = whole,
                                       .dx = dwhole,
                                       .dweight = dwhole_weight});
  for (const Tensor* out : {&squares, &products, &dwhole, &dwhole_weight}) r.record("projection_qk_norm", *out);
  const Tensor db = zeros({d});
  run(b, ops::BiasBackward{.dy = dy, .dbias = db});
  r.record("bias_backward", db);

  const Tensor h = r.operand("h", {t, 2 * d}), dh = zeros({t, 2 * d}, c), scale = r.normal("scale", {t}),
               dscale = zeros({t});
  run(b, ops::ActivationBackward{.dy = dy, .h = h, .row_scale = scale, .dh = dh, .drow_scale = dscale});
  r.record("activation_backward", dh);
  r.record("activation_backward, scale", dscale);

  const Tensor qkv = r.operand("qkv", {2, 150, 6, 24}), out = zeros({2, 150, 4, 24}, c), lse = zeros({2, 4, 150}),
               dqkv = zeros({2, 150, 6, 24}, c);
  const auto head_range = [](const Tensor& all, Index first, Index count) { return Heads(all.view(), first, count); };
  run(b, ops::AttentionForward{.q = head_range(qkv, 0, 4),
                               .k = head_range(qkv, 4, 1),
                               .v = head_range(qkv, 5, 1),
                               .desc = {0.2f},
                               .out = out,
                               .lse = lse});
  run(b, ops::AttentionBackward{.dout = out,
                                .q = head_range(qkv, 0, 4),
                                .k = head_range(qkv, 4, 1),
                                .v = head_range(qkv, 5, 1),
                                .out = out,
                                .lse = lse,
                                .desc = {0.2f},
                                .dq = head_range(dqkv, 0, 4),
                                .dk = head_range(dqkv, 4, 1),
                                .dv = head_range(dqkv, 5, 1)});
  r.record("attention_forward", out);
  r.record("attention_backward", dqkv);

  const Tensor logits = r.normal("logits", {t, e}), experts = zeros({t, k}, DType::i32), weights = zeros({t, k}),
               routed = zeros({1, e}, DType::i32), probability = zeros({1, e}), z = zeros({1}, DType::f64),
               dispatch_mask = zeros({t, k}, DType::i32), assignments = zeros({t * k}, DType::i32),
               tokens = zeros({t * k}, DType::i32), row_id_map = zeros({t, k}, DType::i32),
               counts = zeros({e, 2}, DType::i32), tokens_per_expert = zeros({e}, DType::i32),
               physical_experts = zeros({t, k}, DType::i32), row_offsets = zeros({e + 1}, DType::i32),
               copies = zeros({t * k}, DType::i32), copies_of_tokens = zeros({t, k}, DType::i32),
               dlogits = zeros({t, e}, c);
  run(b, ops::RouteForward{.logits = logits,
                           .desc = {Score::softmax, k},
                           .experts = experts,
                           .weights = weights,
                           .counts = routed,
                           .probability = probability,
                           .z_squared = z});
  run(b, ops::RouteBackward{.logits = logits,
                            .experts = experts,
                            .weights = weights,
                            .dweights = weights,
                            .dprobability = probability,
                            .desc = {Score::softmax, k},
                            .z_factor = 0.1f,
                            .dlogits = dlogits});
  run(b, ops::ApplyCapacity{.experts = experts,
                            .weights = weights,
                            .num_experts = e,
                            .desc = {DropOrder::probability, 200},
                            .dispatch_mask = dispatch_mask});
  run(b, ops::DispatchLayout{.experts = experts,
                             .dispatch_mask = dispatch_mask,
                             .partition = {e, 1},
                             .physical_experts = physical_experts,
                             .tokens = copies,
                             .row_id_map = copies_of_tokens,
                             .counts = counts,
                             .tokens_per_expert = tokens_per_expert});
  run(b, ops::BuildPermutation{.physical_experts = physical_experts,
                               .assignments = assignments,
                               .tokens = tokens,
                               .row_id_map = row_id_map,
                               .offsets = row_offsets});
  for (const Tensor* o :
       {&experts, &weights, &routed, &probability, &z, &dlogits, &dispatch_mask, &physical_experts, &copies,
        &copies_of_tokens, &counts, &tokens_per_expert, &assignments, &tokens, &row_id_map, &row_offsets})
    r.record("routing", *o);
  const Tensor permuted = zeros({t * k, d}, c), unpermuted = zeros({t, d}, c);
  run(b, ops::Permute{.x = x, .index = tokens, .y = permuted});
  run(b, ops::Unpermute{.x = permuted, .row_id_map = row_id_map, .y = unpermuted});
  r.record("unpermute", unpermuted);

  std::vector<std::int32_t> offsets = {0};
  for (Index i = 0; i < e; ++i) offsets.push_back(offsets.back() + static_cast<std::int32_t>(31 * i % 160));
  const Index grouped_rows = offsets.back();
  const Tensor at = r.put<std::int32_t>({e + 1}, offsets), gx = r.operand("gx", {grouped_rows, d}),
               gw = r.operand("gw", {e, 40, d}), gy = zeros({grouped_rows, 40}, c), gdx = zeros({grouped_rows, d}, c),
               gdw = zeros({e, 40, d});
  const GroupOffsets groups = {at, offsets.data()};
  const Tensor gbias = r.operand("gbias", {e, d}), gscale = r.normal("gscale", {grouped_rows}), gdbias = zeros({e, d}),
               gbiased = zeros({grouped_rows, d}, c), gdscale = zeros({grouped_rows});
  run(b, ops::GroupedBiasForward{.bias = gbias, .row_scale = gscale, .groups = groups, .y = gbiased});
  run(b, ops::GroupedBiasBackward{
             .dy = gx, .bias = gbias, .row_scale = gscale, .groups = groups, .dbias = gdbias, .drow_scale = gdscale});
  for (const Tensor* o : {&gbiased, &gdbias, &gdscale}) r.record("grouped_bias", *o);
  run(b, ops::GroupedGemm{.x = gx, .w = gw, .groups = groups, .y = gy});
  run(b, ops::GroupedGemmDgrad{.dy = gy, .w = gw, .groups = groups, .dx = gdx});
  run(b, ops::GroupedGemmWgrad{.dy = gy, .x = gx, .groups = groups, .dw = gdw});
  for (const Tensor* o : {&gy, &gdx, &gdw}) r.record("grouped_gemm", *o);

  std::vector<std::int32_t> ids(t);
  for (Index i = 0; i < t; ++i) ids[i] = static_cast<std::int32_t>(RandomStream(5, "ids").bits(i) % 11);
  const Tensor id = r.put<std::int32_t>({t}, ids), dtable = zeros({11, d});
  run(b, ops::EmbeddingBackward{.ids = id, .dy = dy, .dtable = dtable});
  r.record("embedding_backward", dtable);

  const Tensor partials = zeros({1, t, 3}), token_lse = zeros({t}), loss = zeros({t});
  run(b, ops::CrossEntropyForward{
             .logits = product, .targets = id, .desc = {}, .partial = partials.view().reshape({t, 3})});
  run(b, ops::CrossEntropyLoss{.partials = partials, .targets = id, .lse = token_lse, .loss = loss});
  const Tensor total = r.put<double>({1}, {1.0});
  const Tensor& gradient = c == DType::f32 ? product : rounded;
  run(b, ops::CrossEntropyBackward{.logits = product,
                                   .targets = id,
                                   .lse = token_lse,
                                   .total = total,
                                   .desc = {.z_loss = 0.1},
                                   .dlogits = gradient});
  r.record("cross_entropy", loss);
  r.record("cross_entropy_backward", gradient);
}

class Determinism : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!GetParam().available()) GTEST_SKIP() << "no device";
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, Determinism, testing::Values(targets[0], targets[1], targets[2]), target_name);

// The CUDA emulator gets its number of multiprocessors from the environment. A real GPU has a fixed
// number; it must return the same bits in every run.
TEST_P(Determinism, IsBitwiseEqualForAnyNumberOfThreads) {
  auto device = GetParam().make();
  const int threads = omp_get_max_threads();
  const bool on_host = device->on_host();
  if (on_host) omp_set_num_threads(1);
  Recorder alone(*device, GetParam().dtype);
  run_all(*device, alone);
  for (int n : {2, 3, 2}) {
    if (on_host) {
      omp_set_num_threads(n);
    } else {
      setenv("CUDA_HOST_MULTIPROCESSORS", std::to_string(n).c_str(), 1);
      device = GetParam().make();
    }
    Recorder together(*device, GetParam().dtype);
    run_all(*device, together);
    ASSERT_EQ(together.results.size(), alone.results.size());
    for (std::size_t i = 0; i < alone.results.size(); ++i)
      EXPECT_TRUE(alone.results[i].second == together.results[i].second)
          << alone.results[i].first << " on " << n << " threads";
  }
  omp_set_num_threads(threads);
  unsetenv("CUDA_HOST_MULTIPROCESSORS");
}

// A packed weight changes no bit of the results. GEMMs read it and not the values: they do not see
// new values before these are packed.
TEST_P(Determinism, PackedWeightsGiveTheSameBits) {
  const auto device = GetParam().make();
  Device& b = *device;
  Recorder r(b, GetParam().dtype);
  struct {
    Index rows, experts, n, q;
  } const sizes[] = {{5, 1, 1, 1}, {1, 1, 45, 67}, {130, 3, 45, 67}, {61, 4, 520, 700}, {0, 2, 3, 5}, {7, 2, 0, 3}};
  for (const auto& [rows, experts, n, q] : sizes) {
    const Tensor x = r.operand("x", {rows, q}), dy = r.operand("dy", {rows, n}), w = r.operand("w", {experts, n, q});
    std::vector<std::int32_t> host;
    for (Index e = 0; e <= experts; ++e)
      host.push_back(static_cast<std::int32_t>(e == 0 ? 0 : rows - rows / (e + 1) / 2));
    host.back() = static_cast<std::int32_t>(rows);
    const Tensor offsets = r.put<std::int32_t>({experts + 1}, host);
    const GroupOffsets groups{offsets, host.data()};

    std::vector<Tensor> forms;
    const auto form = [&](GemmPass pass) -> View {
      const Index bytes = b.packed_weight_bytes(w.shape(), w.view().dtype(), pass, WeightFormat::native);
      return bytes > 0 ? forms.emplace_back(b.tensor({bytes}, DType::u8)).view() : View{};
    };
    Weight packed(w);
    const View output = form(GemmPass::fprop), input = form(GemmPass::dgrad);
    packed.packed_fprop.elements = output;
    packed.packed_dgrad.elements = input;
    const auto pack = [&] {
      if (output) run(b, ops::PackWeight{.weight = w, .pass = GemmPass::fprop, .packed = output});
      if (input) run(b, ops::PackWeight{.weight = w, .pass = GemmPass::dgrad, .packed = input});
    };
    const auto products = [&](const Weight& weight) {
      std::vector<std::byte> all;
      const auto record = [&](View y) {
        const std::size_t at = all.size();
        all.resize(at + static_cast<std::size_t>(y.size_bytes()));
        b.to_host(y, all.data() + at);
      };
      const auto form_of = [&](const PackedWeight& stack, Index e) {  // packed form of matrix e
        const Index bytes = stack ? stack.elements.dim(0) / experts : 0;
        return stack ? PackedWeight{.elements = stack.elements.rows(bytes * e, bytes)} : PackedWeight{};
      };
      const Tensor y = b.tensor({rows, n}, r.c), dx = b.tensor({rows, q}, r.c);
      run(b, ops::GroupedGemm{.x = x, .w = weight, .groups = groups, .y = y});
      run(b, ops::GroupedGemmDgrad{.dy = dy, .w = weight, .groups = groups, .dx = dx});
      record(y);
      record(dx);
      for (Index e = 0; e < experts; ++e) {
        Weight one(weight.values.rows(e, 1).reshape({n, q}));
        one.packed_fprop = form_of(weight.packed_fprop, e);
        one.packed_dgrad = form_of(weight.packed_dgrad, e);
        run(b, ops::Gemm{.a = x, .b = one, .transpose_b = true, .accumulate = true, .c = y});
        run(b, ops::Gemm{.a = dy, .b = one, .c = dx});
        record(y);
        record(dx);
      }
      return all;
    };
    const std::vector<std::byte> expected = products(w);
    pack();
    EXPECT_EQ(products(packed), expected) << rows << " rows of " << n << " x " << q;
    if (!output) continue;
    run(b, ops::Fill{.x = w, .value = 0});
    EXPECT_EQ(products(packed), expected) << "not read";
    pack();
    EXPECT_EQ(products(packed), products(w));
  }
}

// Each case computes rows [begin, begin + count) of its whole input.
TEST_P(Determinism, RowsAreIndependentOfOtherRows) {
  const auto device = GetParam().make();
  Device& b = *device;
  const DType c = GetParam().dtype;
  Recorder r(b, c);
  constexpr Index t = 301, d = 67, n = 45;
  const Tensor x = r.operand("x", {t, d}), w = r.operand("w", {n, d}), norm_weight = r.operand("nw", {d}),
               dy = r.operand("dy", {t, d}), h = r.operand("h", {t, 2 * d}), scores = r.normal("x", {t, d});
  std::vector<std::int32_t> ids(t, 5);
  const Tensor targets = r.put<std::int32_t>({t}, ids);
  const std::function<Tensor(Index, Index)> cases[] = {
      [&](Index begin, Index count) {
        Tensor y = b.tensor({count, n}, c);
        run(b, ops::Gemm{.a = x.view().rows(begin, count), .b = w, .transpose_b = true, .c = y});
        return y;
      },
      [&](Index begin, Index count) {
        Tensor y = b.tensor({count, n}, c);
        const std::vector<std::int32_t> host = {0, static_cast<std::int32_t>(count)};
        const Tensor offsets = r.put<std::int32_t>({2}, host);
        run(b, ops::GroupedGemm{.x = x.view().rows(begin, count),
                                .w = w.view().reshape({1, n, d}),
                                .groups = {offsets, host.data()},
                                .y = y});
        return y;
      },
      [&](Index begin, Index count) {
        Tensor y = b.tensor({count, d}, c);
        const Tensor moments = b.tensor({count, 2});
        run(b, ops::NormForward{.x = x.view().rows(begin, count),
                                .weight = norm_weight,
                                .bias = norm_weight,
                                .desc = {NormKind::layernorm},
                                .y = y,
                                .moments = moments});
        return y;
      },
      [&](Index begin, Index count) {
        Tensor dh = b.tensor({count, 2 * d}, c);
        run(b, ops::ActivationBackward{.dy = dy.view().rows(begin, count), .h = h.view().rows(begin, count), .dh = dh});
        return dh;
      },
      [&](Index begin, Index count) {
        Tensor weights = b.tensor({count, 3});
        const Tensor experts = b.tensor({count, 3}, DType::i32), counts = b.tensor({1, d}, DType::i32),
                     probability = b.tensor({1, d}), z = b.tensor({1}, DType::f64);
        run(b, ops::RouteForward{.logits = scores.view().rows(begin, count),
                                 .desc = {Score::softmax, 3},
                                 .experts = experts,
                                 .weights = weights,
                                 .counts = counts,
                                 .probability = probability,
                                 .z_squared = z});
        return weights;
      },
      [&](Index begin, Index count) {
        Tensor partial = b.tensor({count, 3});
        run(b, ops::CrossEntropyForward{.logits = scores.view().rows(begin, count),
                                        .targets = targets.view().rows(begin, count),
                                        .desc = {0, 2.0f},
                                        .partial = partial});
        return partial;
      },
  };
  int number = 0;
  for (const auto& compute : cases) {
    if (number++ < 2 && !b.on_host()) continue;  // cuBLAS selects its kernel by the sizes
    const Tensor all = compute(0, t);
    for (const auto& [begin, count] :
         {std::pair<Index, Index>{0, 1}, {17, 1}, {t - 1, 1}, {3, 2}, {5, 130}, {40, 261}}) {
      Recorder slice(b, c);
      slice.record("slice", compute(begin, count));
      slice.record("whole", all.view().rows(begin, count));
      EXPECT_TRUE(slice.results[0].second == slice.results[1].second)
          << "case " << number - 1 << ", " << count << " rows from " << begin;
    }
  }
}

// For attention, a sequence takes the role of a row.
TEST_P(Determinism, SequencesAreIndependentOfOtherSequences) {
  const auto device = GetParam().make();
  const DType c = GetParam().dtype;
  Recorder r(*device, c);
  constexpr Index sequences = 3, s = 77, h = 4, k = 2, hd = 16;
  const Tensor qkv = r.operand("qkv", {sequences, s, h + 2 * k, hd}), out = device->tensor({sequences, s, h, hd}, c),
               lse = device->tensor({sequences, h, s});
  const auto attention = [&](View x, View y, View z) {
    run(*device, ops::AttentionForward{.q = heads_of(x, 0, h),
                                       .k = heads_of(x, h, k),
                                       .v = heads_of(x, h + k, k),
                                       .desc = {0.25f},
                                       .out = y,
                                       .lse = z});
  };
  attention(qkv, out, lse);
  for (Index i = 0; i < sequences; ++i) {
    const Tensor one = device->tensor({1, s, h, hd}, c), one_lse = device->tensor({1, h, s});
    attention(qkv.view().rows(i, 1), one, one_lse);
    Recorder both(*device, c);
    both.record("alone", one);
    both.record("together", out.view().rows(i, 1));
    EXPECT_TRUE(both.results[0].second == both.results[1].second) << "sequence " << i;
  }
}

}  // namespace
}  // namespace sy::test
