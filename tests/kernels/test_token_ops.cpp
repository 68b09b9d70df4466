// Operations of kernels/device.h on tokens: routing, embedding and loss.
// Each has one struct (op_case.h).
#include <optional>

#include "kernels/ops/attention.h"
#include "kernels/ops/capacity.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/heads.h"
#include "kernels/ops/load_balancing.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/random.h"
#include "kernels/ops/route.h"
#include "src/numerics/cases/attention.h"
#include "src/numerics/cases/dispatch.h"
#include "src/numerics/cases/loss.h"
#include "src/numerics/cases/route.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

class TokenOps : public DeviceOps {};
INSTANTIATE_TEST_SUITE_P(Targets, TokenOps, testing::ValuesIn(targets), target_name);

// ---- routing ----

TEST_P(TokenOps, RouteMatchesReference) {
  struct {
    Rows shape;
    Index segments;
    int top_k, groups, topk_groups;
  } const cases[] = {{{0, 4}, 1, 2, 1, 1},   {{0, 4}, 3, 2, 1, 1},  {{1, 1}, 1, 1, 1, 1},    {{3, 4}, 3, 4, 1, 1},
                     {{8, 8}, 2, 2, 1, 1},   {{30, 5}, 5, 3, 1, 1}, {{100, 67}, 4, 6, 1, 1}, {{300, 33}, 1, 2, 1, 1},
                     {{9, 8}, 1, 8, 1, 1},   {{40, 8}, 2, 3, 4, 2}, {{70, 16}, 1, 4, 16, 5}, {{600, 64}, 2, 6, 8, 3},
                     {{12, 256}, 1, 8, 8, 4}};
  for (const auto& c : cases)
    for (Score score : {Score::softmax, Score::sigmoid, Score::sqrt_softplus})
      for (bool renormalize : {false, true})
        for (bool biased : {false, true}) {
          const RouteDesc desc = {score, c.top_k, renormalize, biased ? 2.5f : 1.0f, c.groups, c.topk_groups};
          check(RouteForward(desc, c.segments, c.shape, biased));
          check(RouteBackward(desc, c.segments, c.shape, biased));
          RouteDesc by_score = desc;
          by_score.balance_by_score = true;
          check(RouteForward(by_score, c.segments, c.shape, biased));
          check(RouteBackward(by_score, c.segments, c.shape, biased));
        }
}

TEST_P(TokenOps, RouteMatchesReferenceForManyTokens) {
  struct {
    Rows shape;
    Index segments;
    int top_k, groups, topk_groups;
  } const cases[] = {{{900, 33}, 1, 2, 1, 1}, {{2000, 64}, 2, 6, 8, 3}};
  for (const auto& c : cases) {
    const RouteDesc desc = {Score::sigmoid, c.top_k, true, 2.5f, c.groups, c.topk_groups};
    check(RouteForward(desc, c.segments, c.shape, true));
    check(RouteBackward(desc, c.segments, c.shape, true));
  }
}

TEST_P(TokenOps, NoisyRouteMatchesReference) {
  struct {
    Rows shape;
    Index segments;
    int top_k, groups, topk_groups;
  } const cases[] = {{{0, 4}, 1, 2, 1, 1},
                     {{3, 4}, 3, 4, 1, 1},
                     {{40, 8}, 2, 3, 4, 2},
                     {{200, 67}, 4, 6, 1, 1},
                     {{12, 256}, 1, 8, 8, 4}};
  for (const auto& c : cases)
    for (bool by_logit : {false, true})
      for (GroupScore group_score : {GroupScore::top2, GroupScore::max})
        for (bool noisy : {false, true}) {
          const RouteDesc desc = {Score::sigmoid, c.top_k, true, 1.0f, c.groups, c.topk_groups, group_score, by_logit};
          for (bool padded : {false, true}) {
            check(RouteForward(desc, c.segments, c.shape, by_logit == noisy, noisy, padded));
            check(RouteBackward(desc, c.segments, c.shape, by_logit == noisy, noisy, padded));
          }
        }
}

TEST_P(TokenOps, ReplayedRouteMatchesReference) {
  for (Score score : {Score::softmax, Score::sigmoid})
    for (bool padded : {false, true}) {
      RouteDesc desc{score, 3, padded, 2.5f, 4, 1};
      check(RouteReplay(desc, 3, {42, 16}, true, padded));
      desc.groups = 1;
      check(RouteReplay(desc, 1, {300, 33}, false, padded));
      check(RouteReplay(desc, 1, {0, 5}, false, padded));
    }
}

TEST_P(TokenOps, DrawMatchesReference) {
  for (Distribution distribution :
       {Distribution::normal, Distribution::gumbel, Distribution::uniform, Distribution::round_robin})
    for (Rows s : {Rows{0, 4}, {3, 0}, {1, 1}, {7, 3}, {1000, 67}})
      check(DrawCase({distribution, 0x123456789abcdef0u, hash_name("stream"), 2.5f}, s));
}

TEST_P(TokenOps, NoisyGatingMatchesReference) {
  for (Rows s : {Rows{0, 4}, {3, 0}, {1, 1}, {7, 3}, {300, 67}}) {
    check(NoisyGatingForward(s));
    check(NoisyGatingBackward(s));
  }
}

TEST_P(TokenOps, JitterMatchesReference) {
  for (Rows s : {Rows{0, 4}, {3, 0}, {1, 1}, {7, 3}, {300, 67}})
    for (bool add : {false, true}) check(JitterCase(s, add));
}

TEST_P(TokenOps, CapacityMatchesReference) {
  struct {
    Index segments, t, k, e;
  } const cases[] = {{1, 0, 2, 4},     {3, 0, 2, 4},     {1, 1, 1, 1},    {4, 12, 2, 5},  {2, 50, 7, 7},
                     {5, 1000, 3, 16}, {1, 3000, 4, 64}, {1, 5001, 2, 2}, {1, 8500, 2, 5}};
  for (const auto& c : cases)
    for (DropOrder order : {DropOrder::token, DropOrder::choice, DropOrder::probability})
      for (Index capacity : {0, 1, 2, 17, 200, 5000})
        for (bool padded : {false, true}) check(CapacityCase({order, capacity}, c.segments, c.t, c.k, c.e, padded));
}

TEST_P(TokenOps, DispatchLayoutAndPermutationMatchReference) {
  struct {
    Index t, k, e;
    std::vector<Index> ep;
  } const cases[] = {{0, 2, 4, {1, 2}},  {1, 1, 1, {1}},  {12, 2, 5, {1, 5}},     {50, 7, 7, {1, 7}},
                     {37, 3, 8, {2, 4}}, {90, 1, 6, {3}}, {1000, 3, 16, {1, 16}}, {3000, 8, 64, {1, 8, 64}}};
  for (const auto& c : cases)
    for (Dispatched dispatched : {Dispatched::some, Dispatched::all, Dispatched::none}) {
      for (Index ep : c.ep)
        for (Index etp : {1, 3})
          for (bool ordered : {false, true}) {
            check(DispatchLayoutCase({ep, etp}, c.t, c.k, c.e, ordered, dispatched));
            if (dispatched == Dispatched::all)
              check(DispatchLayoutCase({ep, etp}, c.t, c.k, c.e, ordered, Dispatched::unmasked));
            if (dispatched == Dispatched::some)
              check(DispatchLayoutCase({ep, etp}, c.t, c.k, c.e, ordered, dispatched, true));
            for (Index first : {Index{0}, 2 * c.e})
              if (!ordered && dispatched == Dispatched::all)
                check(DispatchLayoutCase({ep, etp}, c.t, c.k, c.e, DispatchLayoutCase::Among{first}));
          }
      for (Index ep : c.ep)
        for (Index more : {0, 1, 100000})
          for (Index ep_rank : {Index{0}, ep - 1})
            for (bool weighted : {false, true})
              check(PermutationCase(c.t, c.k, c.e, ep_rank * (c.e / ep), c.e / ep, more, dispatched, std::nullopt,
                                    weighted));
    }
  for (Index one : {0, 5})  // all assignments are for one physical expert: not local, and local
    for (Index more : {0, 7}) check(PermutationCase(700, 4, 8, 4, 4, more, Dispatched::all, one));
}

TEST_P(TokenOps, LoadBalancingLossMatchesReference) {
  for (bool counted : {true, false})
    for (bool together : {false, true})
      for (Index layers : {1, 3}) {
        // In this order: one segment; a scope per segment; scopes of three segments; one scope of
        // the segments of all ranks. In the fifth case each rank has one segment of the scope.
        check(LoadBalancingCase({0, 1, together, 1e-3, 0.5}, layers, 1, 1, 1, counted));
        check(LoadBalancingCase({0, 1, together, 1e-3, 0.5}, layers, 5, 7, 1, counted));
        check(LoadBalancingCase({6, 3, together, 1e-3, 0.5}, layers, 6, 8, 2, counted));
        check(LoadBalancingCase({5, 20, together, 1e-3, 0.5}, layers, 5, 40, 4, counted));
        check(LoadBalancingCase({3, 12, together, 1e-3, 0.5}, layers, 1, 40, 12, counted));
        check(LoadBalancingCase({0, 4, together, 1e-3, 0}, layers, 4, 300, 1, counted));
      }
}

TEST_P(TokenOps, KvCacheAppendMatchesReference) {
  for (Index B : {0, 1, 3})
    for (const auto& [S, C] : {std::pair<Index, Index>{0, 4}, {1, 1}, {1, 40}, {7, 9}, {64, 200}})
      for (const auto& [N, w] : {std::pair<Index, Index>{1, 1}, {2, 3}, {3, 8}, {4, 64}})
        check(KvCacheAppend(B, S, C, N, w));
}

TEST_P(TokenOps, HeadSlicesMatchReference) {
  for (const auto& [B, S] : {std::pair<Index, Index>{0, 3}, {2, 0}, {1, 1}, {3, 7}, {2, 129}}) {
    for (const auto& [shared, w, first] :
         {std::tuple<bool, Index, Index>{false, 8, 16}, {false, 3, 5}, {true, 8, 16}, {true, 5, 1}, {true, 1, 0}}) {
      const Index heads = shared ? 1 : 4;
      check(BroadcastHeads(B, S, {heads + 1, 1, heads, w + 8, 8, w}, {6, 1, 4, first + w + 4, first, w}));
      check(ReduceHeads(B, S, {6, 2, 4, first + w + 4, first, w}, {1, 0, 1, w + 8, 8, w}));
    }
    for (const GemmPass pass : {GemmPass::fprop, GemmPass::dgrad})
      for (const auto& [in, out] : {std::pair<Index, Index>{8, 16}, {1, 1}, {7, 5}, {33, 70}})
        check(BatchedHeadGemm(pass, B, S, {5, 1, 3, in + 4, 4, in}, {3, 0, 3, out + 3, 2, out}));
  }
  check(ReduceHeads(2, 9, {1, 0, 1, 4, 0, 4}, {2, 1, 1, 4, 0, 4}));
}

TEST_P(TokenOps, PermuteAndUnpermuteMatchReference) {
  for (Rows s : many_rows) {
    check(PermuteRows(5, s));
    check(PermuteIntegers(5, s));
    for (Begin begin : {Begin::zero, Begin::itself, Begin::another})
      for (const auto& [rows, k] : {std::pair<Index, Index>{0, 2}, {1, 1}, {9, 2}, {40, 5}})
        check(UnpermuteRows(rows, s.t, k, s.d, begin));
  }
}

// Combine sums in f32 in the order of the choices: large values that cancel make the order visible.
TEST_P(TokenOps, UnpermuteSumsInTheOrderOfTheChoices) {
  const auto b = GetParam().make();
  const std::vector<std::int32_t> row_id_map = {0, 1, 2, 2, 1, 0};
  for (const Index d : {1, 5, 40}) {
    std::vector<float> numbers, sums(static_cast<std::size_t>(2 * d));
    for (const float number : {1e8f, -1e8f, 1.0f}) numbers.insert(numbers.end(), static_cast<std::size_t>(d), number);
    const Tensor wide = b->tensor({3, d}), x = b->tensor({3, d}, GetParam().dtype),
                 index = b->tensor({2, 3}, DType::i32), y = b->tensor({2, d}, GetParam().dtype),
                 found = b->tensor({2, d});
    b->to_device(numbers.data(), wide);
    b->to_device(row_id_map.data(), index);
    run(*b, ops::Convert{.x = wide, .y = x});
    run(*b, ops::Unpermute{.x = x, .row_id_map = index, .y = y});
    run(*b, ops::Convert{.x = y, .y = found});
    b->to_host(found, sums.data());
    for (Index i = 0; i < d; ++i) {
      EXPECT_EQ(sums[static_cast<std::size_t>(i)], 1.0f) << i << " of " << d;
      EXPECT_EQ(sums[static_cast<std::size_t>(d + i)], 0.0f) << i << " of " << d;
    }
  }
}

// ---- embedding and loss ----

TEST_P(TokenOps, EmbeddingMatchesReference) {
  struct {
    Index t, vocab, d, begin;
  } const cases[] = {{0, 5, 4, 0},  {4, 0, 3, 2},       {3, 5, 0, 0},    {1, 1, 1, 0},
                     {50, 7, 3, 4}, {300, 40, 130, 20}, {2000, 3, 65, 0}};
  for (const auto& c : cases) {
    check(EmbeddingForward(c.t, c.vocab, c.d, c.begin));
    check(EmbeddingBackward(c.t, c.vocab, c.d, c.begin));
  }
}

TEST_P(TokenOps, CrossEntropyMatchesReference) {
  for (Rows s : {Rows{0, 5}, {4, 0}, {1, 1}, {7, 3}, {40, 257}, {5, 1001}, {3, 50000}})
    for (float softcap : {0.0f, 4.0f})
      for (Index begin : {0, 3}) {
        for (double deviation : {1.0, 300.0}) check(CrossEntropyForward({begin, softcap}, s, deviation));
        for (bool in_logits : {false, true}) check(CrossEntropyBackward({begin, softcap}, s, in_logits));
      }
  for (Index shards : {1, 2, 5})
    for (Index t : {0, 1, 100, 5000}) check(CrossEntropyLoss(shards, t, shards > 1));
  for (Index t : {0, 1, 100, 5000}) check(LossSums(t));
}

}  // namespace
}  // namespace sy::test
