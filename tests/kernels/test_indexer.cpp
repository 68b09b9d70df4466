// The indexer of sparse attention, and attention to selected keys.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ops/attention.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/indexer.h"
#include "src/numerics/cases/indexer.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

// Devices without these operations are skipped.
class IndexerOps : public DeviceOps {
 protected:
  void SetUp() override {
    DeviceOps::SetUp();
    if (!IsSkipped() && !device->has_kernel(ops::TopkKeys::name)) GTEST_SKIP() << "the device has no indexer";
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, IndexerOps, testing::ValuesIn(targets), target_name);

// Each query of s tokens sees those keys j with (5 p + 3 j) % 4 < 2, and key p - p % 3 in any case.
// The lists have `padding` more places. `queries` below s: the last ones, as with a cache.
struct SelectedShape {
  Index b, s, h, k, hd, vd, queries, padding;
  bool sinks = false;
};
struct AttentionToSelected : OpCase {
  SelectedShape a;
  bool all;  // the lists have all keys up to the query
  AttentionToSelected(SelectedShape shape, bool all_keys) : a(shape), all(all_keys) {
    in("q", {a.b, a.queries, a.h, a.hd});
    in("k", {a.b, a.s, a.k, a.hd});
    in("v", {a.b, a.s, a.k, a.vd});
    Numbers lists;
    for (Index b = 0; b < a.b; ++b)
      for (Index i = 0; i < a.queries; ++i) {
        const std::size_t end = lists.size() + static_cast<std::size_t>(a.s + a.padding);
        for (Index j = 0; j <= position(i); ++j)
          if (is_selected(position(i), j)) lists.push_back(static_cast<double>(j));
        lists.resize(end, -1.0);
      }
    in("selected", {a.b, a.queries, a.s + a.padding}, lists, DType::i32);
    in("offsets", {a.b}, Numbers(static_cast<std::size_t>(a.b), static_cast<double>(position(0))), DType::i32);
    in_if(a.sinks, "sinks", {a.h}, DType::f32);
    tolerance = gradient_tolerance = 2e-5;
    bf16_tolerance = 2e-2;
  }
  Index position(Index i) const { return a.s - a.queries + i; }
  bool is_selected(Index p, Index j) const { return all || (5 * p + 3 * j) % 4 < 2 || j == p - p % 3; }
  double scale() const { return 1.3 / std::sqrt(static_cast<double>(a.hd)); }
  AttentionDesc desc() const {
    AttentionDesc desc{.scale = static_cast<float>(scale())};
    desc.mask.query_offset = position(0);
    desc.mask.selected = at("selected");
    desc.sinks = at("sinks");
    return desc;
  }
  ref::Attention reference(Values& v, const Numbers* dout = nullptr) const {
    return ref::attention(a.b, {v["q"].data(), a.queries, a.h, 0, a.h, a.hd}, {v["k"].data(), a.s, a.k, 0, a.k, a.hd},
                          {v["v"].data(), a.s, a.k, 0, a.k, a.vd}, scale(), 0.0,
                          [&](Index, Index i, Index j) { return j <= position(i) && is_selected(position(i), j); },
                          dout, {{}, a.sinks ? v["sinks"] : Numbers{}});
  }
};
struct ForwardToSelected : AttentionToSelected {
  bool cached;
  ForwardToSelected(SelectedShape shape, bool all_keys, bool of_cache)
      : AttentionToSelected(shape, all_keys), cached(of_cache) {
    out("out", {a.b, a.queries, a.h, a.vd});
    out("lse", {a.b, a.h, a.queries}, DType::f32);
  }
  void run(Device& b) override {
    AttentionDesc used = desc();
    if (cached) {
      used.mask.query_offset = 0;
      used.mask.query_offsets = at("offsets");
    }
    ops::run(b, ops::AttentionForward{
                    .q = at("q"), .k = at("k"), .v = at("v"), .desc = used, .out = at("out"), .lse = at("lse")});
  }
  void expect(Values& v) override {
    const ref::Attention want = reference(v);
    v["out"] = want.out;
    v["lse"] = want.lse;
  }
};
struct BackwardToSelected : AttentionToSelected {
  BackwardToSelected(SelectedShape shape, bool all_keys) : AttentionToSelected(shape, all_keys) {
    bf16_tolerance = 5e-2;  // the output, from which gradients are computed, is rounded, too
    const ref::Attention saved = reference(values());
    in("out", {a.b, a.queries, a.h, a.vd}, saved.out);
    in("lse", {a.b, a.h, a.queries}, saved.lse, DType::f32);
    in("dout", {a.b, a.queries, a.h, a.vd});
    out("dq", {a.b, a.queries, a.h, a.hd});
    out("dk", {a.b, a.s, a.k, a.hd});
    out("dv", {a.b, a.s, a.k, a.vd});
  }
  void run(Device& b) override {
    ops::run(b, ops::AttentionBackward{.dout = at("dout"),
                                       .q = at("q"),
                                       .k = at("k"),
                                       .v = at("v"),
                                       .out = at("out"),
                                       .lse = at("lse"),
                                       .desc = desc(),
                                       .dq = at("dq"),
                                       .dk = at("dk"),
                                       .dv = at("dv")});
  }
  void expect(Values& v) override {
    const Numbers dout = v["dout"];
    const ref::Attention want = reference(v, &dout);
    v["dq"] = want.dq;
    v["dk"] = want.dk;
    v["dv"] = want.dv;
  }
};

// The last shape has more than a block of keys and of queries.
constexpr SelectedShape selected_shapes[] = {
    {2, 7, 4, 2, 5, 3, 7, 0}, {1, 37, 2, 1, 16, 16, 37, 3, true}, {1, 290, 2, 2, 8, 8, 290, 1}};

TEST_P(IndexerOps, AttentionToSelectedKeysMatchesReference) {
  for (SelectedShape shape : selected_shapes)
    for (bool all : {false, true}) {
      check(ForwardToSelected(shape, all, false));
      check(BackwardToSelected(shape, all));
      for (Index queries : {1, 3}) {
        shape.queries = queries;
        for (bool cached : {false, true}) check(ForwardToSelected(shape, all, cached));
      }
    }
}

// With lists of all visible keys, attention has the bits of dense attention.
TEST_P(IndexerOps, AttentionToAllKeysIsDenseAttention) {
  constexpr Index B = 2, S = 300, H = 2, w = 16;
  std::vector<float> values(B * S * 3 * H * w);
  const RandomStream random(3, "qkv");
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random.normal(i));
  std::vector<std::int32_t> lists(B * S * S, -1);
  for (Index row = 0; row < B * S; ++row)
    for (Index j = 0; j <= row % S; ++j) lists[row * S + j] = static_cast<std::int32_t>(j);
  Tensor exact = device->tensor({B, S, 3 * H, w}), qkv = device->tensor({B, S, 3 * H, w}, GetParam().dtype),
         selected = device->tensor({B, S, S}, DType::i32);
  device->to_device(values.data(), exact);
  device->to_device(lists.data(), selected);
  run(*device, ops::Convert{.x = exact, .y = qkv});
  std::vector<std::vector<std::byte>> results[2];
  for (const bool sparse : {false, true}) {
    AttentionDesc desc{.scale = 0.3f};
    if (sparse) desc.mask.selected = selected;
    const Tensor out = device->tensor({B, S, H, w}, GetParam().dtype), lse = device->tensor({B, H, S}),
                 dqkv = device->tensor({B, S, 3 * H, w}, GetParam().dtype);
    const auto heads = [&](const Tensor& x, Index first) { return Heads(x.view(), first, H); };
    run(*device,
        ops::AttentionForward{
            .q = heads(qkv, 0), .k = heads(qkv, H), .v = heads(qkv, 2 * H), .desc = desc, .out = out, .lse = lse});
    run(*device, ops::AttentionBackward{.dout = out,
                                        .q = heads(qkv, 0),
                                        .k = heads(qkv, H),
                                        .v = heads(qkv, 2 * H),
                                        .out = out,
                                        .lse = lse,
                                        .desc = desc,
                                        .dq = heads(dqkv, 0),
                                        .dk = heads(dqkv, H),
                                        .dv = heads(dqkv, 2 * H)});
    device->synchronize();
    for (const ConstView x : {ConstView(out.view()), ConstView(lse.view()), ConstView(dqkv.view())}) {
      results[sparse].emplace_back(static_cast<std::size_t>(x.size_bytes()));
      device->to_host(x, results[sparse].back().data());
    }
  }
  EXPECT_EQ(results[0], results[1]);
}

// Larger sizes than those of the self-test, and empty ones.
TEST_P(IndexerOps, MatchReference) {
  for (const IndexerShape& shape : {IndexerShape{1, 1, 1, 1, 1, 0, 1},
                                    {2, 40, 40, 7, 33, 30, 20},
                                    {1, 270, 270, 2, 9, 0, 270},
                                    {2, 6, 6, 2, 4, 3, 0},
                                    {0, 5, 5, 2, 4, 0, 0}}) {
    for (Index n : {1, 3, 64}) check(TopkKeys(shape, n));
    for (Index n : {0, 3}) {
      if (shape.t > 0) check(numerics::IndexerLoss(shape, n));
      check(numerics::IndexerBackward(shape, n));
    }
  }
  check(numerics::AttentionKeySums(2, 100, 6, 3, 24, 20, 0));
  check(numerics::AttentionKeySums(0, 5, 2, 2, 4, 3, 0));
}

// A NaN among the scores is selected last, and nothing fails.
TEST_P(IndexerOps, SelectsNaNLast) {
  constexpr Index S = 6;
  const Tensor q = device->tensor({S, 1, 1}), weights = device->tensor({S, 1}), k = device->tensor({1, S, 1}),
               selected = device->tensor({S, 2}, DType::i32);
  std::vector<float> ones(S, 1.0f), keys = {3, NAN, 2, 5, NAN, 1};
  device->to_device(ones.data(), q);
  device->to_device(ones.data(), weights);
  device->to_device(keys.data(), k);
  run(*device,
      ops::TopkKeys{.scores = {.q = q, .weights = weights, .k = k, .queries = S, .scale = 1}, .selected = selected});
  std::vector<std::int32_t> got(2 * S);
  device->to_host(selected, got.data());
  EXPECT_EQ(got, (std::vector<std::int32_t>{0, -1, 0, 1, 0, 2, 0, 3, 0, 3, 0, 3}));
}

TEST(IndexerReference, GradientsAreThoseOfTheLoss) {
  constexpr Index B = 2, S = 5, H = 3, w = 4, n = 3;
  const auto random = [](const char* name, std::size_t count) {
    const RandomStream stream(9, name);
    Numbers x(count);
    for (std::size_t i = 0; i < count; ++i) x[i] = stream.normal(i);
    return x;
  };
  Numbers q = random("q", B * S * H * w), weights = random("weights", B * S * H), k = random("k", B * S * w);
  const auto causal = [](Index, Index i, Index j) { return j <= i; };
  const auto operands = [&] { return ref::IndexOperands{q, weights, k, H, w, S, S, 0, 0.4}; };
  const Numbers selected = ref::topk_keys(S, n, ref::index_scores(operands(), causal));
  Numbers attention = random("attention", B * S * n);
  for (std::size_t i = 0; i < attention.size(); ++i) attention[i] = selected[i] < 0 ? 0 : std::abs(attention[i]);
  const auto loss = [&] {
    const Numbers scores = ref::index_scores(operands(), causal);
    return ref::indexer_loss(n, ref::selected_values(S, scores, selected, ref::hidden_score), attention);
  };
  const ref::IndexerLoss found = loss();
  EXPECT_GT(found.loss, 0.1);
  Numbers dscores(B * S * S);
  for (std::size_t i = 0; i < selected.size(); ++i)
    if (selected[i] >= 0) dscores[i / n * S + static_cast<std::size_t>(selected[i])] = found.dscores[i];
  const ref::IndexerGradients gradients = ref::index_scores_backward(operands(), dscores);
  constexpr double h = 1e-6;
  for (const auto& [values, gradient] :
       {std::pair{&q, &gradients.dq}, {&weights, &gradients.dweights}, {&k, &gradients.dk}})
    for (std::size_t i = 0; i < values->size(); ++i) {
      const double before = (*values)[i];
      (*values)[i] = before + h;
      const double above = loss().loss;
      (*values)[i] = before - h;
      const double below = loss().loss;
      (*values)[i] = before;
      EXPECT_NEAR((*gradient)[i], (above - below) / (2 * h), 1e-7) << i;
    }
}

}  // namespace
}  // namespace sy::test
