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
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

namespace ref = reference;

class TokenOps : public DeviceOps {};
INSTANTIATE_TEST_SUITE_P(Targets, TokenOps, testing::ValuesIn(targets), target_name);

// ---- routing ----

struct RouteCase : OpCase {
  RouteDesc desc;
  Index segments, t, e;
  RouteCase(RouteDesc d, Index g, Rows s, bool biased, bool noisy) : desc(d), segments(g), t(s.t), e(s.d) {
    note = fmt::format("score {} top {} renormalize {} groups {}/{} by {}, by logit {}, {} segments",
                       static_cast<int>(d.score), d.top_k, d.renormalize, d.topk_groups, d.groups,
                       static_cast<int>(d.group_score), d.select_by_logit, g);
    // Multiples of 1/16: some scores are equal, and unequal ones differ in f32 too.
    Numbers logits = normal("logits", {t, e}, 2);
    for (double& z : logits) z = std::round(z * 16) / 16;
    in("logits", {t, e}, logits, DType::f32);
    if (biased) in("bias", {e}, normal("bias", {e}, 0.2), DType::f32);
    if (noisy) {
      Numbers noise = normal("noise", {t, e}, 0.5);
      for (double& x : noise) x = std::round(x * 16) / 16;
      in("noise", {t, e}, noise, DType::f32);
    }
    tolerance = gradient_tolerance = 5e-6;
  }
  Numbers choice(Values& v) { return ref::choose_experts(desc, t, e, v["logits"], v["bias"], v["noise"]); }
};

struct RouteForward : RouteCase {
  RouteForward(RouteDesc d, Index g, Rows s, bool biased, bool noisy = false) : RouteCase(d, g, s, biased, noisy) {
    out("experts", {t, d.top_k}, DType::i32);
    out("weights", {t, d.top_k}, DType::f32);
    out("counts", {segments, e}, DType::i32);
    out("probability", {segments, e}, DType::f32);
    out("z_squared", {1}, DType::f64);
  }
  void run(Device& b) override {
    run_test(b, ops::RouteForward{.logits = at("logits"),
                                  .bias = at("bias"),
                                  .noise = at("noise"),
                                  .desc = desc,
                                  .experts = at("experts"),
                                  .weights = at("weights"),
                                  .counts = at("counts"),
                                  .probability = at("probability"),
                                  .z_squared = at("z_squared")});
  }
  void expect(Values& v) override {
    v["experts"] = choice(v);
    v["weights"] = ref::route_weights(desc, t, e, v["logits"], v["experts"]);
    const ref::RouteSums sums = ref::route_sums(desc, segments, t, e, v["logits"], v["experts"]);
    v["counts"] = sums.counts;
    v["probability"] = sums.probability;
    v["z_squared"] = {sums.z_squared};
  }
};

struct RouteBackward : RouteCase {
  static constexpr float z_factor = 0.3f;
  RouteBackward(RouteDesc d, Index g, Rows s, bool biased, bool noisy = false) : RouteCase(d, g, s, biased, noisy) {
    const Shape chosen = {t, d.top_k};
    in("experts", chosen, choice(values()), DType::i32);
    in("weights", chosen, ref::route_weights(desc, t, e, values()["logits"], values()["experts"]), DType::f32);
    in("dweights", chosen, DType::f32);
    in("dprobability", {segments, e}, DType::f32);
    out("dlogits", {t, e});
    gradients = {{"dlogits", "logits"}};
  }
  void run(Device& b) override {
    run_test(b, ops::RouteBackward{.logits = at("logits"),
                                   .experts = at("experts"),
                                   .weights = at("weights"),
                                   .dweights = at("dweights"),
                                   .dprobability = at("dprobability"),
                                   .desc = desc,
                                   .z_factor = z_factor,
                                   .dlogits = at("dlogits")});
  }
  double loss(Values& v) override {
    const ref::RouteSums sums = ref::route_sums(desc, segments, t, e, v["logits"], v["experts"]);
    return ref::dot(v["dweights"], ref::route_weights(desc, t, e, v["logits"], v["experts"])) +
           ref::dot(v["dprobability"], sums.probability) + static_cast<double>(z_factor) * sums.z_squared;
  }
};

TEST_P(TokenOps, RouteMatchesReference) {
  struct {
    Rows shape;
    Index segments;
    int top_k, groups, topk_groups;
  } const cases[] = {{{0, 4}, 1, 2, 1, 1},   {{0, 4}, 3, 2, 1, 1},  {{1, 1}, 1, 1, 1, 1},    {{3, 4}, 3, 4, 1, 1},
                     {{8, 8}, 2, 2, 1, 1},   {{30, 5}, 5, 3, 1, 1}, {{100, 67}, 4, 6, 1, 1}, {{900, 33}, 1, 2, 1, 1},
                     {{9, 8}, 1, 8, 1, 1},   {{40, 8}, 2, 3, 4, 2}, {{70, 16}, 1, 4, 16, 5}, {{2000, 64}, 2, 6, 8, 3},
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
          check(RouteForward(desc, c.segments, c.shape, by_logit == noisy, noisy));
          check(RouteBackward(desc, c.segments, c.shape, by_logit == noisy, noisy));
        }
}

struct DrawCase : OpCase {
  RandomDesc desc;
  Index n;
  DrawCase(RandomDesc d, Rows s) : desc(d), n(s.d) {
    note = fmt::format("distribution {}", static_cast<int>(d.distribution));
    in("index", {s.t}, whole("index", {s.t}, Index{1} << 33, Index{1} << 34), DType::i64);
    out("x", {s.t, s.d}, DType::f32);
    tolerance = 1.2e-7;  // one rounding of f32
  }
  void run(Device& b) override { run_test(b, ops::Draw{.index = at("index"), .desc = desc, .x = at("x")}); }
  void expect(Values& v) override {
    const RandomStream stream(desc.seed, desc.stream);
    for (std::size_t i = 0; i < v["x"].size(); ++i) {
      const auto row = static_cast<std::uint64_t>(v["index"][i / n]), column = i % n, number = row * n + column;
      double x = 0;
      switch (desc.distribution) {
        case Distribution::normal:
          x = stream.normal(number);
          break;
        case Distribution::gumbel:
          x = stream.gumbel(number);
          break;
        case Distribution::uniform:
          x = stream.symmetric(number);
          break;
        case Distribution::round_robin:
          for (std::uint64_t at = row % n, left = n; at != column; at = (at + 1) % n) x = static_cast<double>(--left);
          if (row % n == column) x = static_cast<double>(n);
          break;
      }
      v["x"][i] = static_cast<double>(desc.scale) * x;
    }
  }
};

struct JitterCase : OpCase {
  RandomDesc desc{Distribution::uniform, 0x123456789abcdef0u, hash_name("jitter"), 0.3f};
  Index n;
  bool add;
  JitterCase(Rows s, bool add_) : n(s.d), add(add_) {
    in("index", {s.t}, whole("index", {s.t}, Index{1} << 33, Index{1} << 34), DType::i64);
    in("x", {s.t, s.d});
    if (add)
      accumulate("y", {s.t, s.d});
    else
      out("y", {s.t, s.d});
  }
  void run(Device& b) override {
    run_test(b, ops::Jitter{.x = at("x"), .index = at("index"), .desc = desc, .accumulate = add, .y = at("y")});
  }
  void expect(Values& v) override {
    const RandomStream stream(desc.seed, desc.stream);
    for (std::size_t i = 0; i < v["x"].size(); ++i) {
      const double u = stream.uniform(static_cast<std::uint64_t>(v["index"][i / n]) * n + i % n);
      v["y"][i] = (add ? v["y"][i] : 0.0) + v["x"][i] * (1 + static_cast<double>(desc.scale) * (2 * u - 1));
    }
  }
};

TEST_P(TokenOps, DrawMatchesReference) {
  for (Distribution distribution :
       {Distribution::normal, Distribution::gumbel, Distribution::uniform, Distribution::round_robin})
    for (Rows s : {Rows{0, 4}, {3, 0}, {1, 1}, {7, 3}, {1000, 67}})
      check(DrawCase({distribution, 0x123456789abcdef0u, hash_name("stream"), 2.5f}, s));
}

struct NoisyGatingCase : OpCase {
  RandomDesc desc{Distribution::normal, 0x123456789abcdef0u, hash_name("size"), 0.7f};
  Index n;
  explicit NoisyGatingCase(Rows s) : n(s.d) {
    in("index", {s.t}, whole("index", {s.t}, Index{1} << 33, Index{1} << 34), DType::i64);
    in("stddev", {s.t, s.d}, normal("stddev", {s.t, s.d}, 2), DType::f32);
    tolerance = gradient_tolerance = 3e-6;
  }
  // Returns the noise that is added to x.
  Numbers noise(Values& v) {
    const RandomStream stream(desc.seed, desc.stream);
    Numbers noise;
    for (std::size_t i = 0; i < v["stddev"].size(); ++i)
      noise.push_back(desc.scale * stream.normal(static_cast<std::uint64_t>(v["index"][i / n]) * n + i % n) *
                      std::log1p(std::exp(v["stddev"][i])));
    return noise;
  }
};
struct NoisyGatingForward : NoisyGatingCase {
  explicit NoisyGatingForward(Rows s) : NoisyGatingCase(s) { accumulate("x", {s.t, s.d}, DType::f32); }
  void run(Device& b) override {
    run_test(b, ops::NoisyGatingForward{.stddev = at("stddev"), .index = at("index"), .desc = desc, .x = at("x")});
  }
  void expect(Values& v) override {
    const Numbers more = noise(v);
    for (std::size_t i = 0; i < more.size(); ++i) v["x"][i] += more[i];
  }
};
struct NoisyGatingBackward : NoisyGatingCase {
  explicit NoisyGatingBackward(Rows s) : NoisyGatingCase(s) {
    in("dx", {s.t, s.d});
    out("dstddev", {s.t, s.d});
    gradients = {{"dstddev", "stddev"}};
  }
  void run(Device& b) override {
    run_test(b,
             ops::NoisyGatingBackward{
                 .dx = at("dx"), .stddev = at("stddev"), .index = at("index"), .desc = desc, .dstddev = at("dstddev")});
  }
  double loss(Values& v) override { return ref::dot(v["dx"], noise(v)); }
};

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

// Returns k distinct experts for each of t tokens.
Numbers random_experts(Index t, Index k, Index e) {
  const RandomStream stream(3, "experts");
  Numbers experts;
  for (Index i = 0; i < t; ++i) {
    Numbers keys;
    for (Index j = 0; j < e; ++j) keys.push_back(stream.uniform(i * e + j) / static_cast<double>(1 + j));
    for (Index expert : ref::largest(keys, k)) experts.push_back(static_cast<double>(expert));
  }
  return experts;
}

struct CapacityCase : OpCase {
  CapacityDesc desc;
  Index segments, t, k, e;
  CapacityCase(CapacityDesc d, Index g, Index t_, Index k_, Index e_) : desc(d), segments(g), t(t_), k(k_), e(e_) {
    note = fmt::format("order {} capacity {} segments {}", static_cast<int>(d.order), d.capacity, g);
    in("experts", {t, k}, random_experts(t, k, e), DType::i32);
    Numbers weights = whole("weights", {t, k}, 0, 20);  // with many ties
    for (double& w : weights) w /= 20;
    in("weights", {t, k}, weights, DType::f32);
    out("dispatch_mask", {t, k}, DType::i32);
    tolerance = 0;
  }
  void run(Device& b) override {
    run_test(b, ops::ApplyCapacity{.experts = at("experts"),
                                   .weights = at("weights"),
                                   .segments = segments,
                                   .num_experts = e,
                                   .desc = desc,
                                   .dispatch_mask = at("dispatch_mask")});
  }
  void expect(Values& v) override {
    v["dispatch_mask"] = ref::apply_capacity(desc, segments, t, k, v["experts"], v["weights"]);
  }
};

// Returns the physical expert of each expert: reversed, and rotated by half of the experts.
Numbers some_order(Index e) {
  Numbers order;
  for (Index expert = 0; expert < e; ++expert) order.push_back(static_cast<double>((e - 1 - expert + e / 2) % e));
  return order;
}

// Assignments that are not dropped.
enum class Dispatched { some, all, none };

struct DispatchLayoutCase : OpCase {
  ExpertPartition partition;
  Index k, e;
  DispatchLayoutCase(ExpertPartition s, Index t, Index k_, Index e_, bool ordered,
                     Dispatched dispatched = Dispatched::some, bool counted_alone = false)
      : partition(s), k(k_), e(e_) {
    note = fmt::format("ep {}, etp {}{}", s.ep, s.etp, ordered ? ", another order" : "");
    const Shape copies = {t, std::min(k, s.ep) * s.etp};
    if (ordered) in("logical_to_physical", {e}, some_order(e), DType::i32);
    in("experts", {t, k}, random_experts(t, k, e), DType::i32);
    in("dispatch_mask", {t, k},
       whole("dispatch_mask", {t, k}, dispatched == Dispatched::all, dispatched == Dispatched::none ? 1 : 2),
       DType::i32);
    out("physical_experts", {t, k}, DType::i32);
    if (!counted_alone) {
      out("tokens", {copies.elements()}, DType::i32);
      out("row_id_map", copies, DType::i32);
    }
    out("counts", {s.ep * s.etp + e}, DType::i32);
    out("tokens_per_expert", {e}, DType::i32);
    tolerance = 0;
  }
  // Physical experts [first, first + e) of more, on both sides; some assignments are dropped.
  struct Among {
    Index first;
  };
  DispatchLayoutCase(ExpertPartition s, Index t, Index k_, Index e_, Among among) : partition(s), k(k_), e(e_) {
    partition.first_expert = among.first;
    note = fmt::format("ep {}, etp {}, experts from {} on", s.ep, s.etp, among.first);
    const Shape copies = {t, std::min(k, s.ep) * s.etp};
    Numbers physical_experts = random_experts(t, k, among.first + e + 3);
    for (std::size_t a = 0; a < physical_experts.size(); a += 5) physical_experts[a] = -1;
    in("experts", {t, k}, physical_experts, DType::i32);
    out("physical_experts", {t, k}, DType::i32);
    out("tokens", {copies.elements()}, DType::i32);
    out("row_id_map", copies, DType::i32);
    out("counts", {s.ep * s.etp + e}, DType::i32);
    out("tokens_per_expert", {e}, DType::i32);
    tolerance = 0;
  }
  void run(Device& b) override {
    partition.logical_to_physical = at("logical_to_physical");
    run_test(b, ops::DispatchLayout{.experts = at("experts"),
                                    .dispatch_mask = at("dispatch_mask"),
                                    .partition = partition,
                                    .physical_experts = at("physical_experts"),
                                    .tokens = at("tokens"),
                                    .row_id_map = at("row_id_map"),
                                    .counts = at("counts"),
                                    .tokens_per_expert = at("tokens_per_expert")});
  }
  void expect(Values& v) override {
    const ref::DispatchTables s =
        ref::dispatch_layout(partition, v["logical_to_physical"], k, e, v["experts"], v["dispatch_mask"]);
    v["physical_experts"] = s.physical_experts;
    if (at("tokens")) v["tokens"] = s.tokens;
    if (at("row_id_map")) v["row_id_map"] = s.row_id_map;
    v["counts"] = s.counts;
    v["tokens_per_expert"] = s.tokens_per_expert;
  }
};

struct PermutationCase : OpCase {
  Index k, first_expert, local;
  // more: number of rows of the tables beyond R.
  // one: physical expert of all assignments that are not dropped; empty: random.
  PermutationCase(Index t, Index k_, Index e, Index first_, Index local_, Index more,
                  Dispatched dispatched = Dispatched::some, std::optional<Index> one = {})
      : k(k_), first_expert(first_), local(local_) {
    note = fmt::format("experts {}+{} of {}, {} rows more", first_expert, local, e, more);
    Numbers physical_experts = random_experts(t, k, e);
    const Numbers mask =
        whole("dispatch_mask", {t, k}, dispatched == Dispatched::all, dispatched == Dispatched::none ? 1 : 2);
    Index rows = 0;
    for (std::size_t a = 0; a < physical_experts.size(); ++a) {
      if (one) physical_experts[a] = static_cast<double>(*one);
      if (mask[a] == 0 || (one && a % k > 0)) physical_experts[a] = -1;
      rows += physical_experts[a] >= static_cast<double>(first_expert) &&
              physical_experts[a] < static_cast<double>(first_expert + local);
    }
    const Index n = std::min(rows + more, t * k);
    in("physical_experts", {t, k}, physical_experts, DType::i32);
    out("assignments", {n}, DType::i32);
    out("tokens", {n}, DType::i32);
    out("row_id_map", {t, k}, DType::i32);
    out("offsets", {local + 1}, DType::i32);
    tolerance = 0;
  }
  void run(Device& b) override {
    run_test(b, ops::BuildPermutation{.physical_experts = at("physical_experts"),
                                      .first_expert = first_expert,
                                      .assignments = at("assignments"),
                                      .tokens = at("tokens"),
                                      .row_id_map = at("row_id_map"),
                                      .offsets = at("offsets")});
  }
  void expect(Values& v) override {
    const ref::PermutationTables s = ref::build_permutation(
        k, first_expert, local, static_cast<Index>(v["assignments"].size()), v["physical_experts"]);
    v["assignments"] = s.assignments;
    v["tokens"] = s.tokens;
    v["row_id_map"] = s.row_id_map;
    v["offsets"] = s.offsets;
  }
};

TEST_P(TokenOps, CapacityMatchesReference) {
  struct {
    Index segments, t, k, e;
  } const cases[] = {{1, 0, 2, 4},  {3, 0, 2, 4},     {1, 1, 1, 1},     {4, 12, 2, 5},
                     {2, 50, 7, 7}, {5, 1000, 3, 16}, {1, 3000, 4, 64}, {1, 5001, 2, 2}};
  for (const auto& c : cases)
    for (DropOrder order : {DropOrder::token, DropOrder::choice, DropOrder::probability})
      for (Index capacity : {0, 1, 2, 17, 200, 5000}) check(CapacityCase({order, capacity}, c.segments, c.t, c.k, c.e));
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
            if (dispatched == Dispatched::some)
              check(DispatchLayoutCase({ep, etp}, c.t, c.k, c.e, ordered, dispatched, true));
            for (Index first : {Index{0}, 2 * c.e})
              if (!ordered && dispatched == Dispatched::all)
                check(DispatchLayoutCase({ep, etp}, c.t, c.k, c.e, DispatchLayoutCase::Among{first}));
          }
      for (Index ep : c.ep)
        for (Index more : {0, 1, 100000})
          for (Index ep_rank : {Index{0}, ep - 1})
            check(PermutationCase(c.t, c.k, c.e, ep_rank * (c.e / ep), c.e / ep, more, dispatched));
    }
  for (Index one : {0, 5})  // all assignments are for one physical expert: not local, and local
    for (Index more : {0, 7}) check(PermutationCase(700, 4, 8, 4, 4, more, Dispatched::all, one));
}

struct LoadBalancingCase : OpCase {
  LoadBalancingDesc desc;
  Index l, g, e, p;
  LoadBalancingCase(LoadBalancingDesc d, Index layers, Index g_, Index e_, Index ranks, bool counted)
      : desc(d), l(layers), g(g_), e(e_), p(ranks) {
    note = fmt::format("first {} of scopes of {}{}", d.first, d.per_scope, d.together ? ", together" : "");
    in("counts", {l, g, e}, whole("counts", {l, g, e}, 0, 1000), DType::i32);
    in("scope_counts", {p, l, g, e}, whole("scope_counts", {p, l, g, e}, 0, 1000), DType::i32);
    in("probability", {l, g, e}, DType::f32);
    in("tokens_per_expert", {l, e}, whole("tokens_per_expert", {l, e}, 0, 1000), DType::i32);
    in("z_squared", {l}, whole("z_squared", {l}, 0, 1000), DType::f64);
    out("dprobability", {l, g, e}, DType::f32);
    if (counted) accumulate("sums", {l, 3 * e + 2}, DType::f64);
  }
  void run(Device& b) override {
    run_test(b, ops::LoadBalancingLoss{.counts = at("counts"),
                                       .scope_counts = at("scope_counts"),
                                       .probability = at("probability"),
                                       .tokens_per_expert = at("tokens_per_expert"),
                                       .z_squared = at("z_squared"),
                                       .desc = desc,
                                       .dprobability = at("dprobability"),
                                       .sums = at("sums")});
  }
  void expect(Values& v) override {
    const ref::LoadBalancing want = ref::load_balancing_loss(desc, {p, l, g, e}, v["counts"], v["scope_counts"],
                                                             v["probability"], v["tokens_per_expert"], v["z_squared"]);
    v["dprobability"] = want.dprobability;
    for (std::size_t i = 0; i < v["sums"].size(); ++i) v["sums"][i] += want.sums[i];
  }
};

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

struct PermuteRows : OpCase {
  Index d;
  PermuteRows(Index n, Rows s) : d(s.d) {
    in("x", {n, d});
    in("index", {s.t}, whole("index", {s.t}, -1, n), DType::i32);
    out("y", {s.t, d});
    tolerance = 0;
  }
  void run(Device& b) override { run_test(b, ops::Permute{.x = at("x"), .index = at("index"), .y = at("y")}); }
  void expect(Values& v) override { v["y"] = ref::permute(d, v["x"], v["index"]); }
};

// Rows of integers: the bits are copied, including those of -1.
struct PermuteIntegers : OpCase {
  Index d;
  PermuteIntegers(Index n, Rows s) : d(s.d) {
    in("x", {n, d}, whole("x", {n, d}, -1, 1 << 20), DType::i32);
    in("index", {s.t}, whole("index", {s.t}, -1, n), DType::i32);
    out("y", {s.t, d}, DType::i32);
    tolerance = 0;
  }
  void run(Device& b) override { run_test(b, ops::Permute{.x = at("x"), .index = at("index"), .y = at("y")}); }
  void expect(Values& v) override { v["y"] = ref::permute(d, v["x"], v["index"]); }
};

// Appends heads 1 to N of the N + 2 heads of each token to a cache of C positions.
struct KvCacheAppend : OpCase {
  Index B, S, C, N, w;
  KvCacheAppend(Index sequences, Index tokens, Index capacity, Index heads, Index width)
      : B(sequences), S(tokens), C(capacity), N(heads), w(width) {
    in("x", {B, S, N + 2, w});
    in("offsets", {B}, whole("offsets", {B}, 0, C - S + 1), DType::i32);
    in_out("y", {B, C, N, w});
    tolerance = 0;
  }
  void run(Device& b) override {
    run_test(b, ops::KvCacheAppend{.x = heads_of(at("x"), 1, N), .offsets = at("offsets"), .y = at("y")});
  }
  void expect(Values& v) override {
    for (Index b = 0; b < B; ++b)
      for (Index i = 0; i < S; ++i)
        for (Index c = 0; c < N * w; ++c)
          v["y"][(b * C + ref::whole(v["offsets"][b]) + i) * N * w + c] = v["x"][(b * S + i) * (N + 2) * w + w + c];
  }
};

TEST_P(TokenOps, KvCacheAppendMatchesReference) {
  for (Index B : {0, 1, 3})
    for (const auto& [S, C] : {std::pair<Index, Index>{0, 4}, {1, 1}, {1, 40}, {7, 9}, {64, 200}})
      for (const auto& [N, w] : {std::pair<Index, Index>{1, 1}, {2, 3}, {3, 8}, {4, 64}})
        check(KvCacheAppend(B, S, C, N, w));
}

// A slice of a tensor [B, S, all_heads, all_columns]: heads [first_head, first_head + heads),
// columns [first, first + width).
struct Columns {
  Index all_heads, first_head, heads, all_columns, first, width;
  Shape shape(Index B, Index S) const { return {B, S, all_heads, all_columns}; }
  Index offset(Index token, Index head, Index column) const {
    return (token * all_heads + first_head + head) * all_columns + first + column;
  }
  template <class V>
  auto of(V x) const {
    return heads_of(x, first_head, heads).columns(first, width);
  }
};
// Copies a slice of heads: all heads, or one head to all.
struct BroadcastHeads : OpCase {
  Index T;
  Columns x, y;
  BroadcastHeads(Index B, Index S, Columns from, Columns to) : T(B * S), x(from), y(to) {
    in("x", x.shape(B, S));
    in_out("y", y.shape(B, S));
    tolerance = 0;
  }
  void run(Device& b) override { run_test(b, ops::BroadcastHeads{.x = x.of(at("x")), .y = y.of(at("y"))}); }
  void expect(Values& v) override {
    for (Index t = 0; t < T; ++t)
      for (Index h = 0; h < y.heads; ++h)
        for (Index c = 0; c < y.width; ++c) v["y"][y.offset(t, h, c)] = v["x"][x.offset(t, x.heads == 1 ? 0 : h, c)];
  }
};

// Sums a slice of heads. It must be the gradient of the copy between the same slices.
struct ReduceHeads : OpCase {
  Index B, S;
  Columns x, y;
  ReduceHeads(Index sequences, Index tokens, Columns from, Columns to) : B(sequences), S(tokens), x(from), y(to) {
    in("x", x.shape(B, S));
    in_out("y", y.shape(B, S));
    tolerance = 2e-6;
  }
  void run(Device& b) override { run_test(b, ops::ReduceHeads{.x = x.of(at("x")), .y = y.of(at("y"))}); }
  void expect(Values& v) override {
    for (Index t = 0; t < B * S; ++t)
      for (Index c = 0; c < y.width; ++c) {
        double& sum = v["y"][y.offset(t, 0, c)];
        sum = 0;
        for (Index h = 0; h < x.heads; ++h) sum += v["x"][x.offset(t, h, c)];
      }
  }
};

struct BatchedHeadGemm : OpCase {
  GemmPass pass;
  Index T, n, q;
  Columns x, y;
  BatchedHeadGemm(GemmPass u, Index B, Index S, Columns from, Columns to)
      : pass(u),
        T(B * S),
        n(u == GemmPass::fprop ? to.width : from.width),
        q(u == GemmPass::fprop ? from.width : to.width),
        x(from),
        y(to) {
    note = pass == GemmPass::fprop ? "output" : "input";
    in("x", x.shape(B, S));
    in("w", {x.heads, n, q});
    in_out("y", y.shape(B, S));
    tolerance = 5e-6;
  }
  void run(Device& b) override {
    run_test(b, ops::BatchedHeadGemm{.x = x.of(at("x")), .w = at("w"), .pass = pass, .y = y.of(at("y"))});
  }
  void expect(Values& v) override {
    for (Index t = 0; t < T; ++t)
      for (Index h = 0; h < y.heads; ++h)
        for (Index i = 0; i < y.width; ++i) {
          double& sum = v["y"][y.offset(t, h, i)];
          sum = 0;
          for (Index j = 0; j < x.width; ++j)
            sum += v["x"][x.offset(t, h, j)] *
                   v["w"][(h * n + (pass == GemmPass::fprop ? i : j)) * q + (pass == GemmPass::fprop ? j : i)];
        }
  }
};

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

// Initial value of the sums of y: zero, y itself, or another matrix.
enum class Begin { zero, itself, another };
struct UnpermuteRows : OpCase {
  Index k, d;
  Begin begin;
  UnpermuteRows(Index rows, Index t, Index k_, Index d_, Begin at) : k(k_), d(d_), begin(at) {
    in("x", {rows, d});
    in("row_id_map", {t, k}, whole("row_id_map", {t, k}, -1, rows), DType::i32);
    in_if(begin == Begin::another, "addend", {t, d});
    begin == Begin::itself ? accumulate("y", {t, d}) : out("y", {t, d});
  }
  void run(Device& b) override {
    run_test(b, ops::Unpermute{.x = at("x"),
                               .row_id_map = at("row_id_map"),
                               .addend = begin == Begin::itself ? at("y") : at("addend"),
                               .y = at("y")});
  }
  void expect(Values& v) override {
    v["y"] = ref::unpermute(d, k, v["x"], v["row_id_map"], begin == Begin::another ? v["addend"] : v["y"]);
  }
};

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

struct EmbeddingCase : OpCase {
  Index t, vocab, d, begin;
  EmbeddingCase(Index t_, Index vocab_, Index d_, Index begin_) : t(t_), vocab(vocab_), d(d_), begin(begin_) {
    note = fmt::format("vocabulary from {}", begin);
    in("ids", {t}, whole("ids", {t}, 0, begin + vocab + 2), DType::i32);  // some are on other ranks
  }
  Numbers forward(Values& v) { return ref::embedding(vocab, d, begin, v["ids"], v["table"]); }
};

struct EmbeddingForward : EmbeddingCase {
  EmbeddingForward(Index t_, Index vocab_, Index d_, Index begin_) : EmbeddingCase(t_, vocab_, d_, begin_) {
    in("table", {vocab, d});
    out("y", {t, d});
    tolerance = 0;
  }
  void run(Device& b) override {
    run_test(b, ops::EmbeddingForward{.ids = at("ids"), .table = at("table"), .vocab_begin = begin, .y = at("y")});
  }
  void expect(Values& v) override { v["y"] = forward(v); }
};

struct EmbeddingBackward : EmbeddingCase {
  EmbeddingBackward(Index t_, Index vocab_, Index d_, Index begin_) : EmbeddingCase(t_, vocab_, d_, begin_) {
    in("dy", {t, d});
    hidden("table", {vocab, d});
    accumulate("dtable", {vocab, d}, DType::f32);
    gradients = {{"dtable", "table"}};
  }
  void run(Device& b) override {
    run_test(b, ops::EmbeddingBackward{.ids = at("ids"), .dy = at("dy"), .vocab_begin = begin, .dtable = at("dtable")});
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v)); }
};

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

struct CrossEntropyCase : OpCase {
  CrossEntropyDesc desc;
  Index t, v_all;
  CrossEntropyCase(CrossEntropyDesc d, Rows s) : desc(d), t(s.t), v_all(s.d) {
    note = fmt::format("vocabulary from {} softcap {}", d.vocab_begin, d.softcap);
    Numbers targets = whole("targets", {t}, 0, d.vocab_begin + v_all + 1);
    for (std::size_t i = 2; i < targets.size(); i += 3) targets[i] = -1;
    in("targets", {t}, targets, DType::i32);
  }
  Numbers partial(Values& v) { return ref::cross_entropy_partial(desc, v_all, v["logits"], v["targets"]); }
};

struct CrossEntropyForward : CrossEntropyCase {
  CrossEntropyForward(CrossEntropyDesc d, Rows s, double deviation) : CrossEntropyCase(d, s) {
    in("logits", {t, v_all}, normal("logits", {t, v_all}, deviation), DType::f32);
    out("partial", {t, 3}, DType::f32);
    tolerance = 3e-6;
  }
  void run(Device& b) override {
    run_test(b, ops::CrossEntropyForward{
                    .logits = at("logits"), .targets = at("targets"), .desc = desc, .partial = at("partial")});
  }
  void expect(Values& v) override { v["partial"] = partial(v); }
};

struct CrossEntropyLoss : OpCase {
  Index shards;
  CrossEntropyLoss(Index shards_, Index t, bool empty_shard) : shards(shards_) {
    Numbers targets = whole("targets", {t}, -1, 10), partials = normal("partials", {shards, t, 3}, 5);
    for (std::size_t i = 1; i < partials.size(); i += 3) partials[i] = 1 + std::abs(partials[i]);
    if (empty_shard)  // the first rank has no rows of the vocabulary
      for (Index i = 0; i < t; ++i)
        partials[3 * i] = -std::numeric_limits<double>::infinity(), partials[3 * i + 1] = partials[3 * i + 2] = 0;
    in("partials", {shards, t, 3}, partials, DType::f32);
    in("targets", {t}, targets, DType::i32);
    out("lse", {t}, DType::f32);
    out("loss", {t}, DType::f32);
  }
  void run(Device& b) override {
    run_test(b, ops::CrossEntropyLoss{
                    .partials = at("partials"), .targets = at("targets"), .lse = at("lse"), .loss = at("loss")});
  }
  void expect(Values& v) override {
    const ref::Loss want = ref::cross_entropy_loss(shards, v["partials"], v["targets"]);
    v["lse"] = want.lse;
    v["loss"] = want.loss;
  }
};

struct CrossEntropyBackward : CrossEntropyCase {
  static constexpr double total = 1.4, z_loss = 0.03;
  bool replaces;
  CrossEntropyBackward(CrossEntropyDesc d, Rows s, bool in_logits) : CrossEntropyCase(d, s), replaces(in_logits) {
    desc.z_loss = z_loss;
    in("total", {1}, {total}, DType::f64);
    in_logits ? in_out("logits", {t, v_all}, DType::f32) : in("logits", {t, v_all}, DType::f32);
    in("lse", {t}, v_all ? ref::cross_entropy_loss(1, partial(values()), values()["targets"]).lse : Numbers(t),
       DType::f32);
    if (!in_logits) out("dlogits", {t, v_all});
    gradients = {{in_logits ? "logits" : "dlogits", "logits"}};
  }
  void run(Device& b) override {
    run_test(b, ops::CrossEntropyBackward{.logits = at("logits"),
                                          .targets = at("targets"),
                                          .lse = at("lse"),
                                          .total = at("total"),
                                          .desc = desc,
                                          .dlogits = at(replaces ? "logits" : "dlogits")});
  }
  double loss(Values& v) override {
    const ref::Loss l = ref::cross_entropy_loss(1, partial(v), v["targets"]);
    double sum = 0;
    for (Index i = 0; i < t; ++i)
      if (v["targets"][i] >= 0) sum += (l.loss[i] + z_loss * l.lse[i] * l.lse[i]) / total;
    return sum;
  }
};

struct LossSums : OpCase {
  explicit LossSums(Index t) {
    Numbers targets = whole("targets", {t}, -1, 2), losses = normal("losses", {t});
    for (std::size_t i = 0; i < targets.size(); ++i)
      if (targets[i] < 0) losses[i] = 0;
    in("losses", {t}, losses, DType::f32);
    in("lse", {t}, DType::f32);
    in("targets", {t}, targets, DType::i32);
    accumulate("sums", {2}, DType::f64);
  }
  void run(Device& b) override {
    run_test(b, ops::LossSums{.losses = at("losses"), .lse = at("lse"), .targets = at("targets"), .sums = at("sums")});
  }
  void expect(Values& v) override {
    for (std::size_t i = 0; i < v["lse"].size(); ++i) {
      v["sums"][0] += v["losses"][i];
      v["sums"][1] += v["targets"][i] < 0 ? 0 : v["lse"][i] * v["lse"][i];
    }
  }
};

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
