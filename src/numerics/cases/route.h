// Cases of the router, its noise and its losses (op_case.h).
#pragma once

#include <cmath>

#include "kernels/ops/load_balancing.h"
#include "kernels/ops/random.h"
#include "kernels/ops/route.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

// A router in forward. The gradient is that of the same logits, `op.logits`.
struct RouteCase : OperationCase<ops::RouteForward> {
  Index segments, t, e;
  // padded: every third token is padding.
  RouteCase(RouteDesc d, Index g, Rows s, bool biased, bool noisy, bool padded) : segments(g), t(s.t), e(s.d) {
    op.desc = d;
    note = fmt::format("score {} top {} renormalize {} groups {}/{} by {}, by logit {}, {} segments",
                       static_cast<int>(d.score), d.top_k, d.renormalize, d.topk_groups, d.groups,
                       static_cast<int>(d.group_score), d.select_by_logit, g);
    // Multiples of 1/16: some scores are equal, and unequal ones differ in f32 too.
    Numbers logits = normal("logits", {t, e}, 2);
    for (double& z : logits) z = std::round(z * 16) / 16;
    in({"logits", op.logits}, {t, e}, logits, DType::f32);
    if (biased) in({"bias", op.bias}, {e}, normal("bias", {e}, 0.2), DType::f32);
    if (noisy) {
      Numbers noise = normal("noise", {t, e}, 0.5);
      for (double& x : noise) x = std::round(x * 16) / 16;
      in({"noise", op.noise}, {t, e}, noise, DType::f32);
    }
    if (padded) {
      note += ", with padding";
      Numbers token_mask(t);
      for (Index i = 0; i < t; ++i) token_mask[i] = i % 3 != 1;
      in({"token_mask", op.token_mask}, {t}, token_mask, DType::i32);
    }
    tolerance = gradient_tolerance = 5e-6;
  }
  Numbers choice(Values& v) const {
    return ref::choose_experts(op.desc, t, e, v["logits"], v["bias"], v["noise"], v["token_mask"]);
  }
};

// `experts` is the output, or the input of a replay.
struct RouteForward : RouteCase {
  RouteForward(RouteDesc d, Index g, Rows s, bool biased, bool noisy = false, bool padded = false, bool replay = false)
      : RouteCase(d, g, s, biased, noisy, padded) {
    op.replay = replay;
    if (!replay) out({"experts", op.experts}, {t, d.top_k}, DType::i32);
    out({"weights", op.weights}, {t, d.top_k}, DType::f32);
    out({"counts", op.counts}, {segments, e}, DType::i32);
    out({"probability", op.probability}, {segments, e}, DType::f32);
    out({"z_squared", op.z_squared}, {1}, DType::f64);
  }
  void expect(Values& v) override {
    if (!op.replay) v["experts"] = choice(v);
    v["weights"] = ref::route_weights(op.desc, t, e, v["logits"], v["experts"]);
    const ref::RouteSums sums = ref::route_sums(op.desc, segments, t, e, v["logits"], v["experts"]);
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
    in({"experts", op.experts}, {t, d.top_k}, experts, DType::i32);
  }
};

struct RouteBackward : RouteCase {
  ops::RouteBackward backward{};
  RouteBackward(RouteDesc d, Index g, Rows s, bool biased, bool noisy = false, bool padded = false)
      : RouteCase(d, g, s, biased, noisy, padded) {
    const Shape chosen = {t, d.top_k};
    backward.desc = d;
    backward.z_factor = 0.3f;
    in({"experts", backward.experts}, chosen, choice(values()), DType::i32);
    in({"weights", backward.weights}, chosen, ref::route_weights(d, t, e, values()["logits"], values()["experts"]),
       DType::f32);
    in({"dweights", backward.dweights}, chosen, DType::f32);
    in({"dprobability", backward.dprobability}, {segments, e}, DType::f32);
    out_gradient({"logits", backward.dlogits}, {t, e});
  }
  void run(Device& b) override {
    backward.logits = op.logits;
    ops::run(b, backward);
  }
  double loss(Values& v) override {
    const ref::RouteSums sums = ref::route_sums(op.desc, segments, t, e, v["logits"], v["experts"]);
    return ref::dot(v["dweights"], ref::route_weights(op.desc, t, e, v["logits"], v["experts"])) +
           ref::dot(v["dprobability"], sums.probability) + static_cast<double>(backward.z_factor) * sums.z_squared;
  }
};

// An operation that draws numbers for t rows of n.
template <class Operation>
struct RandomCase : OpCase {
  Operation op{};
  Index n;
  RandomCase(RandomDesc d, Rows s) : n(s.d) {
    op.desc = d;
    in({"index", op.index}, {s.t}, whole("index", {s.t}, Index{1} << 33, Index{1} << 34), DType::i64);
  }
  void run(Device& b) override { ops::run(b, op); }
  RandomStream stream() const { return {op.desc.seed, op.desc.stream}; }
  // Returns the number of element i in the stream.
  std::uint64_t number(Values& v, std::size_t i) const {
    return static_cast<std::uint64_t>(v["index"][i / n]) * n + i % n;
  }
  // Returns the noise that noisy gating adds to x.
  Numbers gating_noise(Values& v) const {
    Numbers noise;
    for (std::size_t i = 0; i < v["stddev"].size(); ++i)
      noise.push_back(op.desc.scale * stream().normal(number(v, i)) * std::log1p(std::exp(v["stddev"][i])));
    return noise;
  }
};

struct DrawCase : RandomCase<ops::Draw> {
  DrawCase(RandomDesc d, Rows s) : RandomCase(d, s) {
    note = fmt::format("distribution {}", static_cast<int>(d.distribution));
    out({"x", op.x}, {s.t, s.d}, DType::f32);
    tolerance = 1.2e-7;  // one rounding of f32
  }
  void expect(Values& v) override {
    for (std::size_t i = 0; i < v["x"].size(); ++i) {
      const auto row = static_cast<std::uint64_t>(v["index"][i / n]), column = i % n;
      double x = 0;
      switch (op.desc.distribution) {
        case Distribution::normal:
          x = stream().normal(number(v, i));
          break;
        case Distribution::gumbel:
          x = stream().gumbel(number(v, i));
          break;
        case Distribution::uniform:
          x = stream().symmetric(number(v, i));
          break;
        case Distribution::round_robin:
          for (std::uint64_t at = row % n, left = n; at != column; at = (at + 1) % n) x = static_cast<double>(--left);
          if (row % n == column) x = static_cast<double>(n);
          break;
      }
      v["x"][i] = static_cast<double>(op.desc.scale) * x;
    }
  }
};

struct JitterCase : RandomCase<ops::Jitter> {
  JitterCase(Rows s, bool add)
      : RandomCase({Distribution::uniform, 0x123456789abcdef0u, hash_name("jitter"), 0.3f}, s) {
    op.accumulate = add;
    in({"x", op.x}, {s.t, s.d});
    add ? accumulate({"y", op.y}, {s.t, s.d}) : out({"y", op.y}, {s.t, s.d});
  }
  void expect(Values& v) override {
    for (std::size_t i = 0; i < v["x"].size(); ++i) {
      const double u = stream().uniform(number(v, i));
      v["y"][i] =
          (op.accumulate ? v["y"][i] : 0.0) + v["x"][i] * (1 + static_cast<double>(op.desc.scale) * (2 * u - 1));
    }
  }
};

inline const RandomDesc noisy_gating{Distribution::normal, 0x123456789abcdef0u, hash_name("size"), 0.7f};
struct NoisyGatingForward : RandomCase<ops::NoisyGatingForward> {
  explicit NoisyGatingForward(Rows s) : RandomCase(noisy_gating, s) {
    in({"stddev", op.stddev}, {s.t, s.d}, normal("stddev", {s.t, s.d}, 2), DType::f32);
    accumulate({"x", op.x}, {s.t, s.d}, DType::f32);
    tolerance = 3e-6;
  }
  void expect(Values& v) override {
    const Numbers more = gating_noise(v);
    for (std::size_t i = 0; i < more.size(); ++i) v["x"][i] += more[i];
  }
};
struct NoisyGatingBackward : RandomCase<ops::NoisyGatingBackward> {
  explicit NoisyGatingBackward(Rows s) : RandomCase(noisy_gating, s) {
    in({"stddev", op.stddev}, {s.t, s.d}, normal("stddev", {s.t, s.d}, 2), DType::f32);
    in({"dx", op.dx}, {s.t, s.d});
    out_gradient({"stddev", op.dstddev}, {s.t, s.d});
    tolerance = gradient_tolerance = 3e-6;
  }
  double loss(Values& v) override { return ref::dot(v["dx"], gating_noise(v)); }
};

struct LoadBalancingCase : OperationCase<ops::LoadBalancingLoss> {
  Index l, g, e, p;
  LoadBalancingCase(LoadBalancingDesc d, Index layers, Index g_, Index e_, Index ranks, bool counted)
      : l(layers), g(g_), e(e_), p(ranks) {
    op.desc = d;
    note = fmt::format("first {} of scopes of {}{}", d.first, d.per_scope, d.together ? ", together" : "");
    const auto whole_in = [&](const Name& name, Shape shape, DType type) {
      in(name, shape, whole(name.name, shape, 0, 1000), type);
    };
    whole_in({"counts", op.counts}, {l, g, e}, DType::i32);
    whole_in({"scope_counts", op.scope_counts}, {p, l, g, e}, DType::i32);
    in({"probability", op.probability}, {l, g, e}, DType::f32);
    whole_in({"tokens_per_expert", op.tokens_per_expert}, {l, e}, DType::i32);
    whole_in({"z_squared", op.z_squared}, {l}, DType::f64);
    out({"dprobability", op.dprobability}, {l, g, e}, DType::f32);
    if (counted) accumulate({"sums", op.sums}, {l, 3 * e + 2}, DType::f64);
  }
  void expect(Values& v) override {
    const ref::LoadBalancing want = ref::load_balancing_loss(op.desc, {p, l, g, e}, v["counts"], v["scope_counts"],
                                                             v["probability"], v["tokens_per_expert"], v["z_squared"]);
    v["dprobability"] = want.dprobability;
    for (std::size_t i = 0; i < v["sums"].size(); ++i) v["sums"][i] += want.sums[i];
  }
};

}  // namespace sy::numerics
