// The dry device: counts of FLOPs and bytes, skipped work, and guarantees for host code.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/dry/dry.h"
#include "kernels/dry/reach.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/grouped_gemm.h"
#include "kernels/ops/heads.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/route.h"
#include "src/numerics/reference/attention.h"

namespace sy {
namespace {

Index resident_bytes() {
  long pages = 0, resident = 0;
  std::FILE* const f = std::fopen("/proc/self/statm", "r");
  EXPECT_EQ(std::fscanf(f, "%ld %ld", &pages, &resident), 2);
  std::fclose(f);
  return resident * 4096;
}

TEST(Dry, CountsFlopsAndBytes) {
  const auto device = make_dry();
  const Tensor a = device->tensor({3, 5}), b = device->tensor({5, 7}), c = device->tensor({3, 7});
  DryCounts& counts = dry_counts(*device);
  counts = {};
  run(*device, ops::Gemm{.a = a, .b = b, .c = c});
  EXPECT_EQ(counts.flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(counts.bytes, 4 * (3 * 5 + 5 * 7 + 3 * 7));
  run(*device, ops::Gemm{.a = a, .b = b, .accumulate = true, .c = c});  // also reads c
  EXPECT_EQ(counts.flops, 2 * 2 * 3 * 5 * 7);
  EXPECT_EQ(counts.bytes, 2 * 4 * (3 * 5 + 5 * 7 + 3 * 7) + 4 * 3 * 7);
  counts = {};
  run(*device,
      ops::Gemm{
          .a = device->tensor({5, 3}), .b = device->tensor({7, 5}), .transpose_a = true, .transpose_b = true, .c = c});
  EXPECT_EQ(counts.flops, 2 * 3 * 5 * 7);

  const Tensor x = device->tensor({9, 5}), w = device->tensor({2, 7, 5}), offsets = device->tensor({3}, DType::i32),
               y = device->tensor({9, 7});
  counts = {};
  const std::int32_t host[] = {0, 4, 9};
  const GroupOffsets groups = {offsets, host};
  run(*device, ops::GroupedGemm{.x = x, .w = w, .groups = groups, .y = y});
  run(*device, ops::GroupedGemmDgrad{.dy = y, .w = w, .groups = groups, .dx = x});
  run(*device, ops::GroupedGemmWgrad{.dy = y, .x = x, .groups = groups, .dw = w});
  EXPECT_EQ(counts.flops, 3 * 2 * 9 * 5 * 7);
}

TEST(Dry, CountsVisibleAttentionPairs) {
  const auto device = make_dry();
  const Tensor q = device->tensor({2, 4, 3, 8}), k = device->tensor({2, 4, 1, 8}), v = device->tensor({2, 4, 1, 8}),
               out = device->tensor({2, 4, 3, 8}), lse = device->tensor({2, 3, 4});
  DryCounts& counts = dry_counts(*device);
  const auto flops = [&](bool causal, Index window) {
    counts = {};
    run(*device, ops::AttentionForward{.q = q.view(),
                                       .k = k.view(),
                                       .v = v.view(),
                                       .desc = {1.0f, 0.0f, {causal, window}, {}, {}},
                                       .out = out,
                                       .lse = lse});
    return counts.flops / (2 * 2 * 2 * 3 * 8);  // 2 GEMMs, 2 FLOPs; 2 sequences, 3 heads, width 8
  };
  EXPECT_EQ(flops(true, 0), 1 + 2 + 3 + 4);
  EXPECT_EQ(flops(true, 2), 1 + 2 + 2 + 2);
  EXPECT_EQ(flops(false, 0), 16);
  EXPECT_EQ(flops(false, 2), 2 + 3 + 3 + 2);
  // Sparse patterns: count the pairs of the definition.
  for (const SparsePattern& sparse :
       {SparsePattern::strided(2), SparsePattern::strided(3), SparsePattern{.stride = 2}, SparsePattern::fixed(2, 1),
        SparsePattern::fixed(3, 2), SparsePattern::longformer(1, 1), SparsePattern::longformer(2, 0)})
    for (Index offset : {0, 9}) {
      constexpr Index n = 4;
      const Tensor keys = device->tensor({2, n + offset, 1, 8});
      double pairs = 0;
      for (Index p = offset; p < offset + n; ++p)
        for (Index j = 0; j <= p; ++j) pairs += reference::sees(sparse, p, j);
      counts = {};
      run(*device, ops::AttentionForward{.q = q.view(),
                                         .k = keys.view(),
                                         .v = keys.view(),
                                         .desc = {1.0f, 0.0f, {true, 0, offset, {}, sparse}, {}, {}},
                                         .out = out,
                                         .lse = lse});
      EXPECT_EQ(counts.flops / (2 * 2 * 2 * 3 * 8), pairs) << sparse.stride << " " << sparse.block << " " << offset;
    }
  counts = {};
  run(*device, ops::AttentionBackward{.dout = out,
                                      .q = q.view(),
                                      .k = k.view(),
                                      .v = v.view(),
                                      .out = out,
                                      .lse = lse,
                                      .desc = {},
                                      .dq = q.view(),
                                      .dk = k.view(),
                                      .dv = v.view()});
  EXPECT_EQ(counts.flops, 5 * 2 * 2 * 3 * 8 * 10);
  // One query after four keys: it sees all or two of them. Values are half as wide as keys.
  const Tensor one = device->tensor({2, 1, 3, 8}), narrow = device->tensor({2, 4, 1, 4}),
               narrow_out = device->tensor({2, 1, 3, 4}), one_lse = device->tensor({2, 3, 1});
  for (Index window : {0, 2}) {
    counts = {};
    run(*device, ops::AttentionForward{.q = one.view(),
                                       .k = k.view(),
                                       .v = narrow.view(),
                                       .desc = {1.0f, 0.0f, {true, window, 3}, {}, {}},
                                       .out = narrow_out,
                                       .lse = one_lse});
    EXPECT_EQ(counts.flops, 2 * (8 + 4) * 2 * 3 * (window > 0 ? 2 : 4));
    // A cache counts as full, since only the device knows its lengths.
    const double of_one_offset = counts.flops;
    const Tensor offsets = device->tensor({2}, DType::i32);
    counts = {};
    run(*device, ops::AttentionForward{.q = one.view(),
                                       .k = k.view(),
                                       .v = narrow.view(),
                                       .desc = {1.0f, 0.0f, {.window = window, .query_offsets = offsets}},
                                       .out = narrow_out,
                                       .lse = one_lse});
    EXPECT_EQ(counts.flops, of_one_offset);
    counts = {};
    run(*device, ops::KvCacheAppend{.x = heads_of(one.view(), 0, 1), .offsets = offsets, .y = k.view()});
    EXPECT_EQ(counts.flops, 0);
    EXPECT_EQ(counts.bytes, 2 * (2 * 8 * 4) + 2 * 4);
  }
}

TEST(Dry, CountsBatchedHeadGemms) {
  const auto device = make_dry();
  const Tensor x = device->tensor({2, 4, 3, 8}), w = device->tensor({3, 5, 8}), y = device->tensor({2, 4, 3, 5}),
               one = device->tensor({2, 4, 1, 8});
  DryCounts& counts = dry_counts(*device);
  counts = {};
  run(*device, ops::BatchedHeadGemm{.x = x.view(), .w = w, .pass = GemmPass::fprop, .y = y.view()});
  EXPECT_EQ(counts.flops, 2 * 8 * 3 * 5 * 8);
  EXPECT_EQ(counts.bytes, 4 * (8 * 3 * 8 + 3 * 5 * 8 + 8 * 3 * 5));
  counts = {};
  run(*device, ops::BroadcastHeads{.x = one.view(), .y = x.view()});
  run(*device, ops::ReduceHeads{.x = x.view(), .y = one.view()});
  EXPECT_EQ(counts.flops, 0);
  EXPECT_EQ(counts.bytes, 2 * 4 * (8 * 8 + 8 * 3 * 8));
}

TEST(Dry, UsesNoMemoryForHugeTensors) {
  const auto device = make_dry();
  const Index before = resident_bytes();
  constexpr Index n = Index{1} << 38;  // four tensors of 1 TiB
  const Tensor w = device->tensor({n}), g = device->tensor({n}), m = device->tensor({n}), v = device->tensor({n});
  const Tensor sum = device->tensor({1}, DType::f64), factor = device->tensor({1}), step_scalars = device->tensor({3});
  run(*device, ops::SumSquares{.x = g, .out = sum});
  run(*device, ops::AdamW{.coefficient = factor,
                          .step_scalars = step_scalars,
                          .g = g,
                          .beta1 = 0,
                          .beta2 = 0,
                          .eps = 0,
                          .weight_decay = 0,
                          .w = w,
                          .m = m,
                          .v = v});
  run(*device, ops::Copy{.x = w, .y = g});
  run(*device, ops::Add{.x = g, .y = w});
  EXPECT_LT(resident_bytes() - before, Index{4} << 20);
}

TEST(Dry, PerformsHostCopiesAndSmallFills) {
  const auto device = make_dry();
  const Tensor x = device->tensor({3}), y = device->tensor({3});
  const std::vector<float> values = {1, 2, 3};
  std::vector<float> back(3);
  device->to_device(values.data(), x);
  run(*device, ops::Copy{.x = x, .y = y});
  device->to_host(y, back.data());
  EXPECT_EQ(back, values);
  run(*device, ops::Fill{.x = y, .value = 4});
  device->to_host(y, back.data());
  EXPECT_EQ(back, (std::vector<float>{4, 4, 4}));
}

TEST(Dry, DistributesRowsEvenlyOrByLoad) {
  const auto device = make_dry();
  constexpr Index t = 6, e = 4, k = 2, etp = 2;
  const Tensor experts = device->tensor({t, k}, DType::i32), dispatch_mask = device->tensor({t, k}, DType::i32),
               physical_experts = device->tensor({t, k}, DType::i32),
               tokens_per_expert = device->tensor({e}, DType::i32);
  const auto numbers = [](const Tensor& x) {
    return std::vector<std::int32_t>(x.view().i32(), x.view().i32() + x.view().elements());
  };
  const auto counts_of = [&](const ExpertPartition& partition) {
    const Index copies = partition.max_ep_ranks(k) * partition.etp;
    const Tensor tokens = device->tensor({t * copies}, DType::i32),
                 row_id_map = device->tensor({t, copies}, DType::i32),
                 counts = device->tensor({partition.ranks(), 1 + e / partition.ep}, DType::i32);
    run(*device, ops::DispatchLayout{.experts = experts,
                                     .dispatch_mask = dispatch_mask,
                                     .partition = partition,
                                     .physical_experts = physical_experts,
                                     .tokens = tokens,
                                     .row_id_map = row_id_map,
                                     .counts = counts,
                                     .tokens_per_expert = tokens_per_expert});
    return numbers(counts);
  };
  // Two ep ranks with two experts each, and two etp shards each. There are six ways to choose two
  // of four experts, and one of them leaves out an ep rank. So 5 of 6 tokens go to each rank.
  EXPECT_EQ(counts_of({2, etp}), (std::vector<std::int32_t>{5, 3, 3, 5, 3, 3, 5, 3, 3, 5, 3, 3}));
  set_dry_load(*device, [](Index assignments, std::span<Index> of) {
    EXPECT_EQ(assignments, 12);
    EXPECT_EQ(of[0], 3);
    for (Index i = 0; i < 4; ++i) of[i] = i + 1;
  });
  EXPECT_EQ(counts_of({2, etp}), (std::vector<std::int32_t>{3, 1, 2, 3, 1, 2, 6, 3, 4, 6, 3, 4}));
  EXPECT_EQ(counts_of({1, etp}), (std::vector<std::int32_t>{6, 1, 2, 3, 4, 6, 1, 2, 3, 4}));
  const Tensor logical_to_physical = device->tensor({e}, DType::i32);
  const std::int32_t physical_of_logical[e] = {1, 3, 2, 0};
  device->to_device(physical_of_logical, logical_to_physical);
  EXPECT_EQ(counts_of({2, etp, logical_to_physical.view()}),
            (std::vector<std::int32_t>{5, 4, 1, 5, 4, 1, 5, 3, 2, 5, 3, 2}));
  EXPECT_EQ(numbers(tokens_per_expert), (std::vector<std::int32_t>{1, 2, 3, 4}));
}

// Share of the tokens that have one of experts [first, first + n).
double dry_reach(const std::vector<Index>& tokens_per_expert, Index tokens, Index k, Index first, Index n,
                 const std::vector<Index>& group_of = {}, Index groups = 1, Index limit = 1) {
  return DryReach({tokens_per_expert, tokens, k, group_of, groups, limit})(first, n);
}

// dry_reach: share of the ways to choose k of e experts that include one of the first n, for equal
// and for unequal loads.
TEST(Dry, EstimatesTokensPerRank) {
  for (const auto& [e, n, k] :
       {std::tuple<Index, Index, Index>{8, 2, 2}, {8, 8, 3}, {8, 1, 8}, {64, 16, 8}, {5, 2, 1}}) {
    double missed = 1;
    for (Index i = 0; i < k; ++i)
      missed *= static_cast<double>(std::max<Index>(0, e - n - i)) / static_cast<double>(e - i);
    EXPECT_NEAR(dry_reach(std::vector<Index>(e, 1000 * k), 1000 * e, k, 0, n), 1 - missed, 1e-6)
        << e << " " << n << " " << k;
  }
  // Each of 1000 tokens chooses two of four experts. For 500 of them one assignment is dropped, so
  // at most 500 tokens go to both ep ranks.
  const std::vector<Index> tokens_per_expert = {500, 500, 250, 250};
  const double first = dry_reach(tokens_per_expert, 1000, 2, 0, 2),
               second = dry_reach(tokens_per_expert, 1000, 2, 2, 2);
  EXPECT_GT(first, 0.5);  // between "its two experts always together" and "never together"
  EXPECT_LT(first, 1.0);
  EXPECT_GT(second, 0.25);
  EXPECT_LT(second, 0.5);
  EXPECT_EQ(dry_reach(std::vector<Index>{0, 0, 70, 70}, 70, 2, 0, 2), 0);
  EXPECT_NEAR(dry_reach(std::vector<Index>{0, 0, 70, 70}, 70, 2, 2, 2), 1, 1e-6);
}

// Returns the share of drawn tokens that have one of the n experts from `first` on. For each token,
// `limit` groups are drawn, then k experts of these groups.
double simulated_reach(Index e, Index groups, Index limit, Index k, Index first, Index n) {
  std::minstd_rand random(7);
  const Index each = e / groups, tokens = 40000;
  std::vector<Index> all_groups(static_cast<std::size_t>(groups)), experts;
  std::iota(all_groups.begin(), all_groups.end(), Index{0});
  Index hits = 0;
  for (Index t = 0; t < tokens; ++t) {
    std::shuffle(all_groups.begin(), all_groups.end(), random);
    experts.clear();
    for (Index g = 0; g < limit; ++g)
      for (Index i = 0; i < each; ++i) experts.push_back(all_groups[g] * each + i);
    std::shuffle(experts.begin(), experts.end(), random);
    hits += std::any_of(experts.begin(), experts.begin() + k, [&](Index x) { return x >= first && x < first + n; });
  }
  return static_cast<double>(hits) / static_cast<double>(tokens);
}

TEST(Dry, EstimatesFewerRanksWithGroupLimits) {
  const auto reach = [](Index e, Index groups, Index limit, Index k, Index first, Index n) {
    std::vector<Index> group_of;
    for (Index i = 0; i < e; ++i) group_of.push_back(i * groups / e);
    return dry_reach(std::vector<Index>(e, 1000 * k), 1000 * e, k, first, n, group_of, groups, limit);
  };
  // The first three cases: DeepSeek-V3 on one of 8 nodes and on one of 64 ranks, and experts of
  // three groups.
  for (const auto& [e, groups, limit, k, first, n] :
       {std::tuple<Index, Index, Index, Index, Index, Index>{256, 8, 4, 8, 32, 32},
        {256, 8, 4, 8, 252, 4},
        {16, 4, 2, 3, 3, 6},
        {12, 4, 1, 2, 0, 6},
        {12, 4, 3, 5, 7, 2}})
    EXPECT_NEAR(reach(e, groups, limit, k, first, n), simulated_reach(e, groups, limit, k, first, n), 0.008)
        << e << " " << groups << " " << limit << " " << k << " " << first << " " << n;
  // The node has the 32 experts of one of 8 groups. Half of the choices of 4 groups leave out this
  // group. The others miss all of its experts with probability C(96, 8) / C(128, 8).
  double missed = 1;
  for (Index i = 0; i < 8; ++i) missed *= (96.0 - static_cast<double>(i)) / (128.0 - static_cast<double>(i));
  EXPECT_NEAR(reach(256, 8, 4, 8, 0, 32), 0.5 * (1 - missed), 1e-9);
  EXPECT_LT(8 * reach(256, 8, 4, 8, 0, 32), 4);
  EXPECT_NEAR(reach(12, 4, 1, 3, 3, 3), 0.25, 1e-9);  // one group is one rank
  EXPECT_NEAR(reach(16, 4, 4, 3, 0, 4), dry_reach(std::vector<Index>(16, 3000), 16000, 3, 0, 4), 1e-9);
  // A group that is chosen more often than others is reached more often.
  const std::vector<Index> group_of = {0, 0, 1, 1, 2, 2}, tokens_per_expert = {500, 500, 300, 300, 200, 200};
  EXPECT_NEAR(dry_reach(tokens_per_expert, 1000, 2, 0, 2, group_of, 3, 1), 0.5, 0.1);
  EXPECT_NEAR(dry_reach(tokens_per_expert, 1000, 2, 2, 2, group_of, 3, 1), 0.3, 0.1);
  EXPECT_NEAR(dry_reach(tokens_per_expert, 1000, 2, 4, 2, group_of, 3, 1), 0.2, 0.1);
  double sum = 0;
  for (const Index first : {0, 2, 4}) sum += dry_reach(tokens_per_expert, 1000, 2, first, 2, group_of, 3, 1);
  EXPECT_NEAR(sum, 1, 1e-9);
}

// Two groups of two experts on two ranks. A token has the experts of one group. If experts 0 and 3
// are on the first rank, every token goes to both ranks.
TEST(Dry, KeepsGroupsOfMappedExperts) {
  const auto device = make_dry();
  constexpr Index t = 6, e = 4, k = 2;
  const Tensor experts = device->tensor({t, k}, DType::i32), dispatch_mask = device->tensor({t, k}, DType::i32),
               physical_experts = device->tensor({t, k}, DType::i32), tokens = device->tensor({t * k}, DType::i32),
               row_id_map = device->tensor({t, k}, DType::i32), counts = device->tensor({2, 1 + e / 2}, DType::i32),
               tokens_per_expert = device->tensor({e}, DType::i32),
               logical_to_physical = device->tensor({e}, DType::i32);
  const auto tokens_of_ranks = [&](const ExpertPartition& partition) {
    run(*device, ops::DispatchLayout{.experts = experts,
                                     .dispatch_mask = dispatch_mask,
                                     .partition = partition,
                                     .expected = {2, 1, partition.logical_to_physical},
                                     .physical_experts = physical_experts,
                                     .tokens = tokens,
                                     .row_id_map = row_id_map,
                                     .counts = counts,
                                     .tokens_per_expert = tokens_per_expert});
    return std::vector<std::int32_t>{counts.view().i32()[0], counts.view().i32()[1 + e / 2]};
  };
  EXPECT_EQ(tokens_of_ranks({2, 1}), (std::vector<std::int32_t>{3, 3}));
  const std::int32_t physical_of_logical[e] = {0, 2, 3, 1};
  device->to_device(physical_of_logical, logical_to_physical);
  EXPECT_EQ(tokens_of_ranks({2, 1, logical_to_physical.view()}), (std::vector<std::int32_t>{6, 6}));
}

// Two layouts are built before the hop within a node of the first one. Node 1 has the physical
// experts 2 and 3, which are the logical experts 3 and 0.
TEST(Dry, TakesTheLoadOfAnInnerPartitionFromItsOperand) {
  const auto device = make_dry();
  constexpr Index t = 5, e = 4, k = 2;
  Index step = 0;
  set_dry_load(*device, [&](Index, std::span<Index> of) {
    for (Index i = 0; i < e; ++i) of[i] = step + i;
    step += e;
  });
  const Tensor experts = device->tensor({t, k}, DType::i32), physical_experts = device->tensor({t, k}, DType::i32),
               logical_to_physical = device->tensor({e}, DType::i32);
  const std::int32_t physical_of_logical[e] = {3, 1, 0, 2};
  device->to_device(physical_of_logical, logical_to_physical);
  const auto tokens_per_expert = [&](ConstView mask, const ExpertPartition& partition, ConstView outer, Index all) {
    const Tensor counts = device->tensor({partition.ranks(), 1 + all / partition.ep}, DType::i32),
                 per_expert = device->tensor({all}, DType::i32);
    run(*device, ops::DispatchLayout{.experts = experts,
                                     .dispatch_mask = mask,
                                     .partition = partition,
                                     .expected = {1, 1, logical_to_physical, outer},
                                     .physical_experts = physical_experts,
                                     .counts = counts,
                                     .tokens_per_expert = per_expert});
    return std::vector<std::int32_t>(per_expert.view().i32(), per_expert.view().i32() + all);
  };
  const Tensor mask = device->tensor({t, k}, DType::i32), outer = device->tensor({e}, DType::i32);
  const auto first = tokens_per_expert(mask, {2, 1, logical_to_physical}, {}, e);
  EXPECT_EQ(first, (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(tokens_per_expert(mask, {2, 1, logical_to_physical}, {}, e), (std::vector<std::int32_t>{4, 5, 6, 7}));
  device->to_device(first.data(), outer);
  EXPECT_EQ(tokens_per_expert({}, {2, 1, {}, 2}, outer, 2), (std::vector<std::int32_t>{3, 0}));
}

TEST(Dry, MergesEqualCalls) {
  const auto device = make_dry();
  const Tensor a = device->tensor({30, 5}), w = device->tensor({7, 5}), y = device->tensor({30, 7});
  DryCounts& counts = dry_counts(*device);
  counts = {};
  for (int i = 0; i < 3; ++i) run(*device, ops::Gemm{.a = a, .b = w.view(), .transpose_b = true, .c = y});
  run(*device, ops::Gemm{.a = y, .b = a, .transpose_a = true, .c = w});
  run(*device, ops::Add{.x = a, .y = a});
  ASSERT_EQ(counts.calls.size(), 2u);
  const auto times = [&](const char* op, Index size, double flops, double bytes) {
    const auto at = counts.calls.find({op, size, flops, bytes});
    return at == counts.calls.end() ? 0 : at->second;
  };
  const double bytes = 4 * (30 * 5 + 7 * 5 + 30 * 7);
  EXPECT_EQ(times("gemm", 5, 2 * 30 * 5 * 7, bytes), 4);  // equal sizes, equal smallest dimension
  EXPECT_EQ(times("add", 0, 0, 3 * 4 * 30 * 5), 1);
}

TEST(Dry, RejectsOtherDevices) {
  EXPECT_THROW(dry_counts(*make_cpu()), std::logic_error);
}

}  // namespace
}  // namespace sy
