// The router against values computed by hand, on every device. Logits are logarithms of small
// integers, so that the softmax is a fraction: log {1, 2, 3, 4} gives {0.1, 0.2, 0.3, 0.4}.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops/capacity.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/random.h"
#include "kernels/ops/route.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

using Floats = std::vector<float>;
using Ints = std::vector<std::int32_t>;

class Router : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!GetParam().available()) GTEST_SKIP() << "no device";
    device = GetParam().make();
  }

  template <class T>
  Tensor put(Shape shape, const std::vector<T>& values) {
    SY_ASSERT(shape.elements() == static_cast<Index>(values.size()), "{} values", values.size());
    Tensor t = device->tensor(shape, DTypeOf<T>::value);
    device->to_device(values.data(), t);
    return t;
  }
  template <class T>
  std::vector<T> get(ConstView v) {
    device->synchronize();
    std::vector<T> values(v.elements());
    device->to_host(v, values.data());
    return values;
  }

  struct Routed {
    Ints experts;
    Floats weights;
    Ints counts;
    Floats probability;
    double z_squared;
  };
  // numbers: [T, E] logits if `as_they_are`; otherwise the logits are their logarithms.
  // noise: [T, E], or empty.
  Routed route(const RouteDesc& desc, Index t, Index e, Floats numbers, const Floats& bias = {}, Index segments = 1,
               bool as_they_are = false, ConstView noise = {}) {
    if (!as_they_are)
      for (float& x : numbers) x = std::log(x);
    const Tensor logits = put<float>({t, e}, numbers), b = put<float>({static_cast<Index>(bias.size())}, bias);
    const Shape chosen = {t, desc.top_k};
    const Tensor experts = device->tensor(chosen, DType::i32), weights = device->tensor(chosen),
                 counts = device->tensor({segments, e}, DType::i32), probability = device->tensor({segments, e}),
                 z = device->tensor({1}, DType::f64);
    run(*device, ops::RouteForward{.logits = logits,
                                   .bias = bias.empty() ? ConstView() : ConstView(b),
                                   .noise = noise,
                                   .desc = desc,
                                   .experts = experts,
                                   .weights = weights,
                                   .counts = counts,
                                   .probability = probability,
                                   .z_squared = z});
    return {get<std::int32_t>(experts), get<float>(weights), get<std::int32_t>(counts), get<float>(probability),
            get<double>(z)[0]};
  }

  // experts: [T, k]; returns the dispatch mask: [T, k].
  Ints apply_capacity(DropOrder order, Index capacity, Index segments, Index num_experts, Index k, const Ints& experts,
                      Floats weights = {}) {
    const Index t = static_cast<Index>(experts.size()) / k;
    if (weights.empty()) weights.assign(experts.size(), 0.5f);
    const Tensor e = put<std::int32_t>({t, k}, experts), w = put<float>({t, k}, weights),
                 out = device->tensor({t, k}, DType::i32);
    run(*device, ops::ApplyCapacity{.experts = e,
                                    .weights = w,
                                    .segments = segments,
                                    .num_experts = num_experts,
                                    .desc = {order, capacity},
                                    .dispatch_mask = out});
    return get<std::int32_t>(out);
  }

  struct Permutation {
    Ints assignments, tokens, row_id_map, offsets;
  };
  Permutation build_permutation(Index num_experts, Index k, const Ints& experts, const Ints& mask) {
    const Index n = static_cast<Index>(experts.size()), t = n / k;
    const Tensor e = put<std::int32_t>({t, k}, experts), dispatch_mask = put<std::int32_t>({t, k}, mask),
                 assignments = put<std::int32_t>({n}, Ints(n, -7)), tokens = put<std::int32_t>({n}, Ints(n, -7)),
                 physical_experts = device->tensor({t, k}, DType::i32), row_id_map = device->tensor({t, k}, DType::i32),
                 offsets = device->tensor({num_experts + 1}, DType::i32),
                 counts = device->tensor({1, 1 + num_experts}, DType::i32),
                 tokens_per_expert = device->tensor({num_experts}, DType::i32);
    run(*device, ops::DispatchLayout{.experts = e,
                                     .dispatch_mask = dispatch_mask,
                                     .physical_experts = physical_experts,
                                     .counts = counts,
                                     .tokens_per_expert = tokens_per_expert});
    run(*device, ops::BuildPermutation{.physical_experts = physical_experts,
                                       .assignments = assignments,
                                       .tokens = tokens,
                                       .row_id_map = row_id_map,
                                       .offsets = offsets});
    return {get<std::int32_t>(assignments), get<std::int32_t>(tokens), get<std::int32_t>(row_id_map),
            get<std::int32_t>(offsets)};
  }

  static void expect_near(const Floats& got, const Floats& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6f) << "element " << i;
  }

  std::unique_ptr<Device> device;
};
INSTANTIATE_TEST_SUITE_P(Targets, Router, testing::ValuesIn(f32_targets()), target_name);

// ---- selection of experts, and their weights ----

TEST_P(Router, SoftmaxChoosesTheMostProbable) {
  // Token 0: probabilities .1 .2 .3 .4; token 1: .5 .25 .125 .125.
  const Floats numbers = {1, 2, 3, 4, 4, 2, 1, 1};
  const Routed plain = route({Score::softmax, 2, false, 1.0f}, 2, 4, numbers);
  EXPECT_EQ(plain.experts, (Ints{3, 2, 0, 1}));
  expect_near(plain.weights, {0.4f, 0.3f, 0.5f, 0.25f});
  EXPECT_EQ(plain.counts, (Ints{1, 1, 1, 1}));
  expect_near(plain.probability, {0.6f, 0.45f, 0.425f, 0.525f});
  EXPECT_NEAR(plain.z_squared, std::pow(std::log(10.0), 2) + std::pow(std::log(8.0), 2), 1e-5);

  const Routed renormalized = route({Score::softmax, 2, true, 1.0f}, 2, 4, numbers);
  EXPECT_EQ(renormalized.experts, plain.experts);
  expect_near(renormalized.weights, {4.0f / 7, 3.0f / 7, 2.0f / 3, 1.0f / 3});
  const Routed scaled = route({Score::softmax, 2, true, 2.5f}, 2, 4, numbers);
  expect_near(scaled.weights, {10.0f / 7, 7.5f / 7, 5.0f / 3, 2.5f / 3});
}

TEST_P(Router, SigmoidScoresExpertsIndependently) {
  // sigmoid(log n) = n / (n + 1): 1/2, 3/4, 4/5, 1/5. The probability is the softmax: n / 8.25.
  const Floats numbers = {1, 3, 4, 0.25f};
  const Routed plain = route({Score::sigmoid, 2, false, 1.0f}, 1, 4, numbers);
  EXPECT_EQ(plain.experts, (Ints{2, 1}));
  expect_near(plain.weights, {0.8f, 0.75f});
  expect_near(plain.probability, {1 / 8.25f, 3 / 8.25f, 4 / 8.25f, 0.25f / 8.25f});
  const Routed renormalized = route({Score::sigmoid, 2, true, 2.0f}, 1, 4, numbers);
  expect_near(renormalized.weights, {2 * 0.8f / 1.55f, 2 * 0.75f / 1.55f});
}

TEST_P(Router, SqrtSoftplusScoresExpertsIndependently) {
  // softplus(log n) = log(n + 1). e^1 - 1, e^4 - 1, e^9 - 1 give 1, 4, 9; the roots are 1, 2, 3.
  const Floats numbers = {std::exp(1.0f) - 1, std::exp(9.0f) - 1, std::exp(4.0f) - 1};
  const Routed plain = route({Score::sqrt_softplus, 2, false, 1.0f}, 1, 3, numbers);
  EXPECT_EQ(plain.experts, (Ints{1, 2}));
  expect_near(plain.weights, {3, 2});
  expect_near(route({Score::sqrt_softplus, 2, true, 2.0f}, 1, 3, numbers).weights, {1.2f, 0.8f});
}

TEST_P(Router, VanishingScoresGiveNoNan) {
  for (const Score score : {Score::sigmoid, Score::sqrt_softplus}) {
    const Routed r = route({score, 2, true, 1.0f}, 1, 3, {-200, -300, -250}, {}, 1, true);
    for (float w : r.weights) EXPECT_TRUE(w >= 0 && w <= 1) << w;
  }
}

TEST_P(Router, TiesGoToTheLowerExpert) {
  EXPECT_EQ(route({Score::softmax, 3}, 1, 5, {1, 2, 1, 2, 1}).experts, (Ints{1, 3, 0}));
  EXPECT_EQ(route({Score::sigmoid, 3}, 1, 5, {1, 2, 1, 2, 1}).experts, (Ints{1, 3, 0}));
  // Also at the end of a vector register, and if only the last choice is a tie.
  const Floats same(37, 1.0f);
  EXPECT_EQ(route({Score::softmax, 4}, 1, 37, same).experts, (Ints{0, 1, 2, 3}));
  Floats one = same;
  one[36] = 2;
  EXPECT_EQ(route({Score::softmax, 4}, 1, 37, one).experts, (Ints{36, 0, 1, 2}));
}

// A single renormalized choice weighs exactly `scale` for any score. With equal weights, the
// earlier token has precedence.
TEST_P(Router, OneRenormalizedChoiceHasTheScaleAsWeight) {
  constexpr Index tokens = 200, experts = 3;
  const RandomStream draw(4, "numbers");
  Floats numbers(tokens * experts);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(0.05 + draw.uniform(i));
  for (const Score score : {Score::softmax, Score::sigmoid}) {
    const Routed r = route({score, 1, true, 1.7f}, tokens, experts, numbers);
    EXPECT_EQ(r.weights, Floats(tokens, 1.7f));
    for (const Index segments : {1, 4})
      EXPECT_EQ(apply_capacity(DropOrder::probability, 9, segments, experts, 1, r.experts, r.weights),
                apply_capacity(DropOrder::token, 9, segments, experts, 1, r.experts));
  }
}

TEST_P(Router, ChoosesAllExpertsByDescendingScoreIfKEqualsE) {
  const Routed r = route({Score::softmax, 4, true, 1.0f}, 1, 4, {2, 1, 4, 3});
  EXPECT_EQ(r.experts, (Ints{2, 3, 0, 1}));
  expect_near(r.weights, {0.4f, 0.3f, 0.2f, 0.1f});
}

TEST_P(Router, OneExpertGetsEverythingWithWeightOne) {
  const Routed r = route({Score::softmax, 1, true, 1.0f}, 3, 1, {5, 0.1f, 9});
  EXPECT_EQ(r.experts, (Ints{0, 0, 0}));
  expect_near(r.weights, {1, 1, 1});
  EXPECT_EQ(r.counts, (Ints{3}));
}

TEST_P(Router, BiasAffectsSelectionButNotWeights) {
  // Scores .1 .2 .3 .4 with bias .35 on expert 0: selection .45 .2 .3 .4,
  // so 0 comes first and then 3.
  const Routed r = route({Score::softmax, 2, true, 1.0f}, 1, 4, {1, 2, 3, 4}, {0.35f, 0, 0, 0});
  EXPECT_EQ(r.experts, (Ints{0, 3}));
  expect_near(r.weights, {0.2f, 0.8f});
  EXPECT_EQ(r.counts, (Ints{1, 0, 0, 1}));
  expect_near(r.probability, {0.1f, 0.2f, 0.3f, 0.4f});
}

TEST_P(Router, GroupsLimitTheChoice) {
  // Six experts in three groups, probabilities in twentieths: {6, 1} {4, 4} {3, 2}. The sums of the
  // two best are 7, 8, 5. One group: only the second group is eligible, although expert 0 is the
  // best. Two groups: expert 0, then 2.
  const Floats numbers = {6, 1, 4, 4, 3, 2};
  EXPECT_EQ(route({Score::softmax, 2, true, 1.0f, 3, 1}, 1, 6, numbers).experts, (Ints{2, 3}));
  EXPECT_EQ(route({Score::softmax, 3, true, 1.0f, 3, 2}, 1, 6, numbers).experts, (Ints{0, 2, 3}));
  EXPECT_EQ(route({Score::softmax, 4, true, 1.0f, 3, 3}, 1, 6, numbers).experts, (Ints{0, 2, 3, 4}));
  // The sums of groups include the bias: .3 on each of the last two makes their group the best.
  EXPECT_EQ(route({Score::softmax, 2, true, 1.0f, 3, 1}, 1, 6, numbers, {0, 0, 0, 0, 0.3f, 0.3f}).experts,
            (Ints{4, 5}));
  // Groups of one expert: the sum is the expert's score. Ties go to the lower group.
  EXPECT_EQ(route({Score::softmax, 2, true, 1.0f, 4, 2}, 1, 4, {1, 2, 2, 2}).experts, (Ints{1, 2}));
  // Groups by their best expert (DeepSeek-V2): 6, 4, 3. The bias of .3 raises the last one to 9.
  const RouteDesc by_best = {Score::softmax, 1, true, 1.0f, 3, 1, GroupScore::max};
  EXPECT_EQ(route(by_best, 1, 6, numbers).experts, (Ints{0}));
  EXPECT_EQ(route(by_best, 1, 6, numbers, {0, 0, 0, 0, 0.3f, 0}).experts, (Ints{4}));
  // Groups of three: the third best does not count. {5, 1, 4} has 9, {4, 4, 4} has 8.
  EXPECT_EQ(route({Score::softmax, 1, true, 1.0f, 2, 1}, 1, 6, {5, 1, 4, 4, 4, 4}).experts, (Ints{0}));
}

TEST_P(Router, NoiseAffectsSelectionButNotWeights) {
  // Scores .1 .2 .3 .4. With noise, token 0 selects by .6 .2 .3 .4, token 1 by .1 .7 .3 .45.
  const Tensor noise = put<float>({2, 4}, {0.5f, 0, 0, 0, 0, 0.5f, 0, 0.05f});
  const Routed r = route({Score::softmax, 2, false, 1.0f}, 2, 4, {1, 2, 3, 4, 1, 2, 3, 4}, {}, 1, false, noise);
  EXPECT_EQ(r.experts, (Ints{0, 3, 1, 3}));
  expect_near(r.weights, {0.1f, 0.4f, 0.2f, 0.4f});
  expect_near(r.probability, {0.2f, 0.4f, 0.6f, 0.8f});
  // Noise of logits log {1, 2, 3, 4} = 0 .69 1.10 1.39: .5 does not make the first one the largest.
  RouteDesc by_logit{Score::softmax, 1};
  by_logit.select_by_logit = true;
  EXPECT_EQ(route(by_logit, 2, 4, {1, 2, 3, 4, 1, 2, 3, 4}, {}, 1, false, noise).experts, (Ints{3, 3}));
}

// Gumbel noise samples experts in proportion to the softmax p = .1 .2 .3 .4, without replacement.
// The second choice is expert 0 with probability sum_i p_i p_0 / (1 - p_i) = .2 .1 / .8 + ...
// = .1345.
TEST_P(Router, GumbelNoiseSamplesWithoutReplacement) {
  constexpr Index tokens = 40000;
  std::vector<std::int64_t> index(tokens);
  for (Index t = 0; t < tokens; ++t) index[t] = t;
  const Tensor noise = device->tensor({tokens, 4}), at = put<std::int64_t>({tokens}, index);
  run(*device, ops::Draw{.index = at, .desc = {Distribution::gumbel, 5, hash_name("choice")}, .x = noise});
  Floats numbers;
  for (Index t = 0; t < tokens; ++t) numbers.insert(numbers.end(), {1, 2, 3, 4});
  RouteDesc desc{Score::softmax, 2};
  desc.select_by_logit = true;
  const Routed r = route(desc, tokens, 4, numbers, {}, 1, false, noise);
  double first[4] = {}, second = 0;
  for (Index t = 0; t < tokens; ++t) {
    first[r.experts[2 * t]] += 1.0 / tokens;
    second += r.experts[2 * t + 1] == 0 ? 1.0 / tokens : 0.0;
  }
  // Four standard deviations of the mean.
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(first[i], 0.1 * (i + 1), 0.01);
  EXPECT_NEAR(second, 0.1 * (0.2 / 0.8 + 0.3 / 0.7 + 0.4 / 0.6), 0.008);
}

TEST_P(Router, SumsCountsAndProbabilitiesBySegment) {
  // Two segments of two tokens; probabilities .25/.75, .75/.25, .5/.5, .125/.875.
  const Routed r = route({Score::softmax, 1, false, 1.0f}, 4, 2, {1, 3, 3, 1, 1, 1, 1, 7}, {}, 2);
  EXPECT_EQ(r.experts, (Ints{1, 0, 0, 1}));
  EXPECT_EQ(r.counts, (Ints{1, 1, 1, 1}));
  expect_near(r.probability, {1.0f, 1.0f, 0.625f, 1.375f});
}

TEST_P(Router, AcceptsZeroTokens) {
  const Routed r = route({Score::softmax, 2}, 0, 3, {}, {}, 2);
  EXPECT_TRUE(r.experts.empty());
  EXPECT_EQ(r.counts, Ints(6, 0));
  EXPECT_EQ(r.probability, Floats(6, 0.0f));
  EXPECT_EQ(r.z_squared, 0);
  EXPECT_TRUE(apply_capacity(DropOrder::token, 1, 2, 3, 2, {}).empty());
  EXPECT_EQ(build_permutation(3, 2, {}, {}).offsets, (Ints{0, 0, 0, 0}));
}

TEST_P(Router, ChoosesDistinctExpertsForNanAndInfinity) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  for (const Floats& z :
       {Floats{3e38f, -3e38f, 0, 1}, Floats{nan, nan, nan, nan}, Floats{nan, 1, nan, 2}, Floats{-inf, 0, -inf, -inf}})
    for (Score score : {Score::softmax, Score::sigmoid})
      for (int topk_groups : {1, 2}) {
        const Routed r = route({score, 2, true, 1.0f, 2, topk_groups}, 1, 4, z, {}, 1, true);
        for (std::int32_t e : r.experts) EXPECT_TRUE(e >= 0 && e < 4) << e;
        EXPECT_NE(r.experts[0], r.experts[1]);
      }
}

TEST_P(Router, GradientMatchesAHandComputedCase) {
  // Probabilities p = .1 .2 .3 .4, experts 3 and 2 chosen, not renormalized, dweights 1 and 2,
  // dprobability 1 0 0 0, z_factor 1/2, logsumexp log 10 = 2.302585:
  //   weights:      dz = p (ds - sum ds p), ds = 0 0 2 1, sum = 1.0   -> -.1  -.2   .3   0
  //   probability:  dz = p (dp - sum dp p), sum = .1                  ->  .09 -.02 -.03 -.04
  //   z loss:       2.302585 p            ->  .2302585 .460517 .6907755 .921034
  const Tensor logits = put<float>({1, 4}, {std::log(1.0f), std::log(2.0f), std::log(3.0f), std::log(4.0f)});
  const Tensor experts = put<std::int32_t>({1, 2}, {3, 2}), weights = put<float>({1, 2}, {0.4f, 0.3f}),
               dweights = put<float>({1, 2}, {1, 2}), dprobability = put<float>({1, 4}, {1, 0, 0, 0}),
               dlogits = device->tensor({1, 4});
  run(*device, ops::RouteBackward{.logits = logits,
                                  .experts = experts,
                                  .weights = weights,
                                  .dweights = dweights,
                                  .dprobability = dprobability,
                                  .desc = {Score::softmax, 2, false, 1.0f},
                                  .z_factor = 0.5f,
                                  .dlogits = dlogits});
  expect_near(get<float>(dlogits), {0.2202585f, 0.240517f, 0.9607755f, 0.881034f});
}

// ---- capacity ----

// Four tokens with two choices each, of three experts:
//   token 0: 0 1   token 1: 1 0   token 2: 0 2   token 3: 0 1
// Expert 0 is chosen by tokens 0 (first), 1 (second), 2 (first), 3 (first). Expert 1 is chosen by 0
// (second), 1 (first), 3 (second). Expert 2 is chosen by 2 (second).
const Ints choices = {0, 1, 1, 0, 0, 2, 0, 1};

TEST_P(Router, CapacityZeroDropsNothing) {
  for (DropOrder order : {DropOrder::token, DropOrder::choice, DropOrder::probability})
    EXPECT_EQ(apply_capacity(order, 0, 1, 3, 2, choices), Ints(8, 1));
}

TEST_P(Router, TokenOrderPrefersEarlierTokens) {
  EXPECT_EQ(apply_capacity(DropOrder::token, 1, 1, 3, 2, choices), (Ints{1, 1, 0, 0, 0, 1, 0, 0}));
  EXPECT_EQ(apply_capacity(DropOrder::token, 2, 1, 3, 2, choices), (Ints{1, 1, 1, 1, 0, 1, 0, 0}));
  EXPECT_EQ(apply_capacity(DropOrder::token, 3, 1, 3, 2, choices), (Ints{1, 1, 1, 1, 1, 1, 0, 1}));
  EXPECT_EQ(apply_capacity(DropOrder::token, 4, 1, 3, 2, choices), Ints(8, 1));
}

TEST_P(Router, ChoiceOrderPrefersFirstChoices) {
  // First choices in order: 0, 1, 0, 0; then second ones: 1, 0, 2, 1.
  EXPECT_EQ(apply_capacity(DropOrder::choice, 1, 1, 3, 2, choices), (Ints{1, 0, 1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(apply_capacity(DropOrder::choice, 2, 1, 3, 2, choices), (Ints{1, 1, 1, 0, 1, 1, 0, 0}));
  EXPECT_EQ(apply_capacity(DropOrder::choice, 3, 1, 3, 2, choices), (Ints{1, 1, 1, 0, 1, 1, 1, 1}));
}

TEST_P(Router, ProbabilityOrderPrefersLargerWeights) {
  // Expert 0: token 0 with .6, 1 with .3, 2 with .9, 3 with .7.
  // Expert 1: 0 with .4, 1 with .7, 3 with .3.
  const Floats weights = {0.6f, 0.4f, 0.7f, 0.3f, 0.9f, 0.1f, 0.7f, 0.3f};
  EXPECT_EQ(apply_capacity(DropOrder::probability, 1, 1, 3, 2, choices, weights), (Ints{0, 0, 1, 0, 1, 1, 0, 0}));
  EXPECT_EQ(apply_capacity(DropOrder::probability, 2, 1, 3, 2, choices, weights), (Ints{0, 1, 1, 0, 1, 1, 1, 0}));
  EXPECT_EQ(apply_capacity(DropOrder::probability, 3, 1, 3, 2, choices, weights), (Ints{1, 1, 1, 0, 1, 1, 1, 1}));
}

TEST_P(Router, EqualWeightsPreferEarlierTokens) {
  EXPECT_EQ(apply_capacity(DropOrder::probability, 2, 1, 1, 1, {0, 0, 0, 0}), (Ints{1, 1, 0, 0}));
  EXPECT_EQ(apply_capacity(DropOrder::probability, 2, 1, 1, 1, {0, 0, 0, 0}, {0.1f, 0.5f, 0.2f, 0.2f}),
            (Ints{0, 1, 1, 0}));
  EXPECT_EQ(apply_capacity(DropOrder::probability, 2, 1, 1, 1, {0, 0, 0}, {0.0f, -0.0f, 0.0f}), (Ints{1, 1, 0}));
}

TEST_P(Router, SequencesHaveTheirOwnCapacity) {
  // The same four tokens as two sequences of two: each sequence has its own capacity.
  EXPECT_EQ(apply_capacity(DropOrder::token, 1, 2, 3, 2, choices), (Ints{1, 1, 0, 0, 1, 1, 0, 1}));
  EXPECT_EQ(apply_capacity(DropOrder::choice, 1, 2, 3, 2, choices), (Ints{1, 0, 1, 0, 1, 1, 0, 1}));
  const Floats weights = {0.6f, 0.4f, 0.3f, 0.7f, 0.5f, 0.1f, 0.9f, 0.3f};
  EXPECT_EQ(apply_capacity(DropOrder::probability, 1, 2, 3, 2, choices, weights), (Ints{0, 1, 0, 1, 0, 1, 1, 1}));
  // One segment per token: no assignment can be dropped.
  EXPECT_EQ(apply_capacity(DropOrder::token, 1, 4, 3, 2, choices), Ints(8, 1));
}

TEST_P(Router, LimitsAllTokensOfOneExpert) {
  for (DropOrder order : {DropOrder::token, DropOrder::choice, DropOrder::probability}) {
    EXPECT_EQ(apply_capacity(order, 1, 1, 4, 1, {2, 2, 2, 2, 2}), (Ints{1, 0, 0, 0, 0}));
    EXPECT_EQ(apply_capacity(order, 3, 1, 4, 1, {2, 2, 2, 2, 2}), (Ints{1, 1, 1, 0, 0}));
    EXPECT_EQ(apply_capacity(order, 1, 1, 4, 1, {2}), (Ints{1}));  // one token
  }
}

TEST_P(Router, CapacityOneKeepsTheFirstTokenIfKEqualsE) {
  const Ints experts = {1, 0, 2, 0, 1, 2, 2, 1, 0};
  EXPECT_EQ(apply_capacity(DropOrder::token, 1, 1, 3, 3, experts), (Ints{1, 1, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(apply_capacity(DropOrder::choice, 1, 1, 3, 3, experts), (Ints{1, 0, 0, 1, 0, 0, 1, 0, 0}));
}

// ---- order of the rows ----

TEST_P(Router, OrdersRowsByExpertThenToken) {
  // Dispatched: token 0 -> 2, 0; token 1 -> 0 (its choice 2 is dropped); token 2 -> 3, 2; no row
  // for 1.
  const Permutation s = build_permutation(4, 2, {2, 0, 0, 2, 3, 2}, {1, 1, 1, 0, 1, 1});
  EXPECT_EQ(s.offsets, (Ints{0, 2, 2, 4, 5}));
  EXPECT_EQ(s.assignments, (Ints{1, 2, 0, 5, 4, -1}));  // row -> assignment; there is no sixth row
  EXPECT_EQ(s.tokens, (Ints{0, 1, 0, 2, 2, -1}));
  EXPECT_EQ(s.row_id_map, (Ints{2, 0, 1, -1, 4, 3}));
}

// Two ep ranks with two physical experts each, with two etp shards per expert: ranks 0 to 3. Token
// 0 goes to experts 2 and 3 of ep rank 1. Token 1 goes to expert 0, as its choice 2 is dropped.
// Token 2 goes to experts 3 and 1 of both ep ranks.
TEST_P(Router, SendsATokenOnceToARank) {
  const Ints chosen = {2, 3, 0, 2, 3, 1}, mask = {1, 1, 1, 0, 1, 1};
  const Tensor experts = put<std::int32_t>({3, 2}, chosen), dispatch_mask = put<std::int32_t>({3, 2}, mask),
               physical_experts = device->tensor({3, 2}, DType::i32), tokens = device->tensor({12}, DType::i32),
               row_id_map = device->tensor({3, 4}, DType::i32), counts = device->tensor({4, 1 + 2}, DType::i32),
               tokens_per_expert = device->tensor({4}, DType::i32);
  run(*device, ops::DispatchLayout{.experts = experts,
                                   .dispatch_mask = dispatch_mask,
                                   .partition = {2, 2},
                                   .physical_experts = physical_experts,
                                   .tokens = tokens,
                                   .row_id_map = row_id_map,
                                   .counts = counts,
                                   .tokens_per_expert = tokens_per_expert});
  EXPECT_EQ(get<std::int32_t>(physical_experts), (Ints{2, 3, 0, -1, 3, 1}));
  EXPECT_EQ(get<std::int32_t>(tokens), (Ints{1, 2, 1, 2, 0, 2, 0, 2, -1, -1, -1, -1}));
  EXPECT_EQ(get<std::int32_t>(row_id_map), (Ints{4, 6, -1, -1, 0, 2, -1, -1, 5, 7, 1, 3}));
  EXPECT_EQ(get<std::int32_t>(counts), (Ints{2, 1, 1, 2, 1, 1, 2, 1, 2, 2, 1, 2}));
  EXPECT_EQ(get<std::int32_t>(tokens_per_expert), (Ints{1, 1, 1, 2}));
}

TEST_P(Router, CreatesNoRowsIfAllIsDropped) {
  const Permutation s = build_permutation(2, 1, {0, 1, 0}, {0, 0, 0});
  EXPECT_EQ(s.offsets, (Ints{0, 0, 0}));
  EXPECT_EQ(s.row_id_map, (Ints{-1, -1, -1}));
  EXPECT_EQ(s.assignments, (Ints{-1, -1, -1}));
}

TEST_P(Router, PermuteAndUnpermuteRoundTrip) {
  const Tensor x = put<float>({2, 2}, {1, 2, 3, 4}), index = put<std::int32_t>({3}, {1, 0, 1}),
               y = device->tensor({3, 2});
  run(*device, ops::Permute{.x = x, .index = index, .y = y});
  EXPECT_EQ(get<float>(y), (Floats{3, 4, 1, 2, 3, 4}));
  // Token 0 has row 1; token 1 has rows 0 and 2.
  const Tensor row_id_map = put<std::int32_t>({2, 2}, {1, -1, 0, 2}), back = put<float>({2, 2}, {10, 20, 30, 40});
  run(*device, ops::Unpermute{.x = y, .row_id_map = row_id_map, .addend = back, .y = back});
  EXPECT_EQ(get<float>(back), (Floats{11, 22, 36, 48}));
  run(*device, ops::Unpermute{.x = y, .row_id_map = row_id_map, .y = back});
  EXPECT_EQ(get<float>(back), (Floats{1, 2, 6, 8}));
  const Tensor last = put<std::int32_t>({2, 2}, {-1, -1, -1, 0});
  run(*device, ops::Unpermute{.x = y, .row_id_map = last, .y = back});
  EXPECT_EQ(get<float>(back), (Floats{0, 0, 3, 4}));
}

// Combine is the adjoint of gather, drops included: <gather(x), y> = <x, combine(y)>.
TEST_P(Router, UnpermuteIsTheAdjointOfPermute) {
  constexpr Index t = 203, e = 7, k = 3, d = 5;
  const RandomStream random(4, "adjoint");
  Floats numbers, x_values, y_values;
  for (Index i = 0; i < t * e; ++i) numbers.push_back(static_cast<float>(1 + random.uniform(i)));
  const Routed r = route({Score::softmax, k}, t, e, numbers);
  const Ints mask = apply_capacity(DropOrder::probability, 40, 1, e, k, r.experts, r.weights);
  const Permutation s = build_permutation(e, k, r.experts, mask);
  const Index rows = s.offsets.back();
  for (Index i = 0; i < e; ++i) EXPECT_LE(s.offsets[i + 1] - s.offsets[i], 40);
  EXPECT_LT(rows, t * k);  // some assignments are dropped
  for (Index i = 0; i < t * d; ++i) x_values.push_back(static_cast<float>(random.normal(1000000 + i)));
  for (Index i = 0; i < rows * d; ++i) y_values.push_back(static_cast<float>(random.normal(2000000 + i)));

  const Tensor x = put<float>({t, d}, x_values), y = put<float>({rows, d}, y_values),
               permuted = device->tensor({rows, d}), unpermuted = device->tensor({t, d});
  const Tensor tokens = put<std::int32_t>({rows}, Ints(s.tokens.begin(), s.tokens.begin() + rows)),
               row_id_map = put<std::int32_t>({t, k}, s.row_id_map);
  run(*device, ops::Permute{.x = x, .index = tokens, .y = permuted});
  run(*device, ops::Unpermute{.x = y, .row_id_map = row_id_map, .y = unpermuted});
  const Floats gathered = get<float>(permuted), combined = get<float>(unpermuted);
  double left = 0, right = 0;
  for (Index i = 0; i < rows * d; ++i) left += static_cast<double>(gathered[i]) * y_values[i];
  for (Index i = 0; i < t * d; ++i) right += static_cast<double>(x_values[i]) * combined[i];
  EXPECT_NEAR(left, right, 1e-4);
}

}  // namespace
}  // namespace sy::test
