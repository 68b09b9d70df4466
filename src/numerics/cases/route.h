// Cases of the router, its noise and its losses (op_case.h).
#pragma once

#include <cmath>

#include "kernels/ops/load_balancing.h"
#include "kernels/ops/random.h"
#include "kernels/ops/route.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

struct RouteCase : OpCase {
  RouteDesc desc;
  Index segments, t, e;
  // padded: every third token is padding.
  RouteCase(RouteDesc d, Index g, Rows s, bool biased, bool noisy, bool padded) : desc(d), segments(g), t(s.t), e(s.d) {
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
    if (padded) {
      note += ", with padding";
      Numbers token_mask(t);
      for (Index i = 0; i < t; ++i) token_mask[i] = i % 3 != 1;
      in("token_mask", {t}, token_mask, DType::i32);
    }
    tolerance = gradient_tolerance = 5e-6;
  }
  Numbers choice(Values& v) const {
    return ref::choose_experts(desc, t, e, v["logits"], v["bias"], v["noise"], v["token_mask"]);
  }
};

// `experts` is the output, or the input of a replay.
struct RouteForward : RouteCase {
  bool replay;
  RouteForward(RouteDesc d, Index g, Rows s, bool biased, bool noisy = false, bool padded = false, bool replays = false)
      : RouteCase(d, g, s, biased, noisy, padded), replay(replays) {
    if (!replay) out("experts", {t, d.top_k}, DType::i32);
    out("weights", {t, d.top_k}, DType::f32);
    out("counts", {segments, e}, DType::i32);
    out("probability", {segments, e}, DType::f32);
    out("z_squared", {1}, DType::f64);
  }
  void run(Device& b) override {
    ops::run(b, ops::RouteForward{.logits = at("logits"),
                                  .bias = at("bias"),
                                  .noise = at("noise"),
                                  .token_mask = at("token_mask"),
                                  .desc = desc,
                                  .replay = replay,
                                  .experts = at("experts"),
                                  .weights = at("weights"),
                                  .counts = at("counts"),
                                  .probability = at("probability"),
                                  .z_squared = at("z_squared")});
  }
  void expect(Values& v) override {
    if (!replay) v["experts"] = choice(v);
    v["weights"] = ref::route_weights(desc, t, e, v["logits"], v["experts"]);
    const ref::RouteSums sums = ref::route_sums(desc, segments, t, e, v["logits"], v["experts"]);
    v["counts"] = sums.counts;
    v["probability"] = sums.probability;
    v["z_squared"] = {sums.z_squared};
  }
};

// RouteForward of experts that another call has chosen: not the best ones.
struct RouteReplay : RouteForward {
  RouteReplay(RouteDesc d, Index g, Rows s, bool biased, bool padded)
      : RouteForward(d, g, s, biased, false, padded, true) {
    note += ", replayed";
    Numbers experts(t * d.top_k, -1.0);
    for (Index i = 0; i < t; ++i)
      for (Index j = 0; j < d.top_k && !(padded && i % 3 == 1); ++j)
        experts[i * d.top_k + j] = static_cast<double>((5 * i + d.top_k - j) % e);
    in("experts", {t, d.top_k}, experts, DType::i32);
  }
};

struct RouteBackward : RouteCase {
  static constexpr float z_factor = 0.3f;
  RouteBackward(RouteDesc d, Index g, Rows s, bool biased, bool noisy = false, bool padded = false)
      : RouteCase(d, g, s, biased, noisy, padded) {
    const Shape chosen = {t, d.top_k};
    in("experts", chosen, choice(values()), DType::i32);
    in("weights", chosen, ref::route_weights(desc, t, e, values()["logits"], values()["experts"]), DType::f32);
    in("dweights", chosen, DType::f32);
    in("dprobability", {segments, e}, DType::f32);
    out_gradient("logits", {t, e});
  }
  void run(Device& b) override {
    ops::run(b, ops::RouteBackward{.logits = at("logits"),
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

struct DrawCase : OpCase {
  RandomDesc desc;
  Index n;
  DrawCase(RandomDesc d, Rows s) : desc(d), n(s.d) {
    note = fmt::format("distribution {}", static_cast<int>(d.distribution));
    in("index", {s.t}, whole("index", {s.t}, Index{1} << 33, Index{1} << 34), DType::i64);
    out("x", {s.t, s.d}, DType::f32);
    tolerance = 1.2e-7;  // one rounding of f32
  }
  void run(Device& b) override { ops::run(b, ops::Draw{.index = at("index"), .desc = desc, .x = at("x")}); }
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
    add ? accumulate("y", {s.t, s.d}) : out("y", {s.t, s.d});
  }
  void run(Device& b) override {
    ops::run(b, ops::Jitter{.x = at("x"), .index = at("index"), .desc = desc, .accumulate = add, .y = at("y")});
  }
  void expect(Values& v) override {
    const RandomStream stream(desc.seed, desc.stream);
    for (std::size_t i = 0; i < v["x"].size(); ++i) {
      const double u = stream.uniform(static_cast<std::uint64_t>(v["index"][i / n]) * n + i % n);
      v["y"][i] = (add ? v["y"][i] : 0.0) + v["x"][i] * (1 + static_cast<double>(desc.scale) * (2 * u - 1));
    }
  }
};

struct NoisyGatingCase : OpCase {
  RandomDesc desc{Distribution::normal, 0x123456789abcdef0u, hash_name("size"), 0.7f};
  Index n;
  explicit NoisyGatingCase(Rows s) : n(s.d) {
    in("index", {s.t}, whole("index", {s.t}, Index{1} << 33, Index{1} << 34), DType::i64);
    in("stddev", {s.t, s.d}, normal("stddev", {s.t, s.d}, 2), DType::f32);
    tolerance = gradient_tolerance = 3e-6;
  }
  // Returns the noise that is added to x.
  Numbers noise(Values& v) const {
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
    ops::run(b, ops::NoisyGatingForward{.stddev = at("stddev"), .index = at("index"), .desc = desc, .x = at("x")});
  }
  void expect(Values& v) override {
    const Numbers more = noise(v);
    for (std::size_t i = 0; i < more.size(); ++i) v["x"][i] += more[i];
  }
};
struct NoisyGatingBackward : NoisyGatingCase {
  explicit NoisyGatingBackward(Rows s) : NoisyGatingCase(s) {
    in("dx", {s.t, s.d});
    out_gradient("stddev", {s.t, s.d});
  }
  void run(Device& b) override {
    ops::run(b,
             ops::NoisyGatingBackward{
                 .dx = at("dx"), .stddev = at("stddev"), .index = at("index"), .desc = desc, .dstddev = at("dstddev")});
  }
  double loss(Values& v) override { return ref::dot(v["dx"], noise(v)); }
};

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
    ops::run(b, ops::LoadBalancingLoss{.counts = at("counts"),
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

}  // namespace sy::numerics
