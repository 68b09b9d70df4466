// Cases of the embedding, the loss and the updates of weights (op_case.h).
#pragma once

#include <cmath>
#include <limits>

#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/optimizer.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

struct EmbeddingCase : OpCase {
  Index t, vocab, d, begin;
  EmbeddingCase(Index t_, Index vocab_, Index d_, Index begin_) : t(t_), vocab(vocab_), d(d_), begin(begin_) {
    note = fmt::format("vocabulary from {}", begin);
    in("ids", {t}, whole("ids", {t}, 0, begin + vocab + 2), DType::i32);  // some are on other ranks
  }
  Numbers forward(Values& v) const { return ref::embedding(vocab, d, begin, v["ids"], v["table"]); }
};

struct EmbeddingForward : EmbeddingCase {
  EmbeddingForward(Index t_, Index vocab_, Index d_, Index begin_) : EmbeddingCase(t_, vocab_, d_, begin_) {
    in("table", {vocab, d});
    out("y", {t, d});
    tolerance = 0;
  }
  void run(Device& b) override {
    ops::run(b, ops::EmbeddingForward{.ids = at("ids"), .table = at("table"), .vocab_begin = begin, .y = at("y")});
  }
  void expect(Values& v) override { v["y"] = forward(v); }
};

struct EmbeddingBackward : EmbeddingCase {
  EmbeddingBackward(Index t_, Index vocab_, Index d_, Index begin_) : EmbeddingCase(t_, vocab_, d_, begin_) {
    in("dy", {t, d});
    hidden("table", {vocab, d});
    accumulate_gradient("table", {vocab, d}, DType::f32);
  }
  void run(Device& b) override {
    ops::run(b, ops::EmbeddingBackward{.ids = at("ids"), .dy = at("dy"), .vocab_begin = begin, .dtable = at("dtable")});
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v)); }
};

struct CrossEntropyCase : OpCase {
  CrossEntropyDesc desc;
  Index t, v_all;
  CrossEntropyCase(CrossEntropyDesc d, Rows s) : desc(d), t(s.t), v_all(s.d) {
    note = fmt::format("vocabulary from {} softcap {}", d.vocab_begin, d.softcap);
    Numbers targets = whole("targets", {t}, 0, d.vocab_begin + v_all + 1);
    for (std::size_t i = 2; i < targets.size(); i += 3) targets[i] = -1;
    in("targets", {t}, targets, DType::i32);
  }
  Numbers partial(Values& v) const { return ref::cross_entropy_partial(desc, v_all, v["logits"], v["targets"]); }
};

struct CrossEntropyForward : CrossEntropyCase {
  CrossEntropyForward(CrossEntropyDesc d, Rows s, double deviation) : CrossEntropyCase(d, s) {
    in("logits", {t, v_all}, normal("logits", {t, v_all}, deviation), DType::f32);
    out("partial", {t, 3}, DType::f32);
    // Without vectors, as under sanitizers, the terms of a long sum are added one by one.
    tolerance = v_all > 10000 ? 2e-5 : 3e-6;
  }
  void run(Device& b) override {
    ops::run(b, ops::CrossEntropyForward{
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
    ops::run(b, ops::CrossEntropyLoss{
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
    ops::run(b, ops::CrossEntropyBackward{.logits = at("logits"),
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
    ops::run(b, ops::LossSums{.losses = at("losses"), .lse = at("lse"), .targets = at("targets"), .sums = at("sums")});
  }
  void expect(Values& v) override {
    for (std::size_t i = 0; i < v["lse"].size(); ++i) {
      v["sums"][0] += v["losses"][i];
      v["sums"][1] += v["targets"][i] < 0 ? 0 : v["lse"][i] * v["lse"][i];
    }
  }
};

struct ClipCoefficient : OpCase {
  float clip;
  double limit;
  ClipCoefficient(double squares, float c, double l) : clip(c), limit(l) {
    note = fmt::format("clip {}, limit {}", c, l);
    in("squares", {1}, {squares}, DType::f64);
    out("coefficient", {1}, DType::f32);
  }
  void run(Device& b) override {
    ops::run(b, ops::ClipCoefficient{
                    .squares = at("squares"), .clip = clip, .coefficient = at("coefficient"), .limit = limit});
  }
  void expect(Values& v) override {
    const double norm = std::sqrt(v["squares"][0]);
    v["coefficient"] = {!std::isfinite(norm) || norm > limit ? std::nan("")
                        : clip > 0 && norm > clip            ? clip / norm
                                                             : 1};
  }
};

struct AdamWCase : OpCase {
  ref::AdamW desc;
  AdamWCase(Index n, float decay, double coefficient, DType moments = DType::f32) : desc{0.9f, 0.95f, 1e-8f, decay} {
    note = fmt::format("coefficient {}, moments {}", coefficient, info(moments).name);
    in("coefficient", {1}, {coefficient}, DType::f32);
    in("step_scalars", {3}, {1e-2, 1 - 0.729, 1 - 0.857375}, DType::f32);
    in("g", {n}, DType::f32);
    in_out("w", {n}, DType::f32);
    in_out("m", {n}, moments);
    Numbers v = normal("v", {n});
    for (double& x : v) x *= x;
    in_out("v", {n}, v, moments);
    if (compute == DType::bf16) in_out("rounded", {n});
  }
  void run(Device& b) override {
    ops::run(b, ops::AdamW{.coefficient = at("coefficient"),
                           .step_scalars = at("step_scalars"),
                           .g = at("g"),
                           .beta1 = desc.beta1,
                           .beta2 = desc.beta2,
                           .eps = desc.eps,
                           .weight_decay = desc.weight_decay,
                           .w = at("w"),
                           .m = at("m"),
                           .v = at("v"),
                           .rounded = at("rounded")});
  }
  void expect(Values& v) override {
    if (std::isnan(v["coefficient"][0])) return;
    ref::adamw(desc, v["coefficient"][0], v["step_scalars"], v["g"], v["w"], v["m"], v["v"]);
    if (v.count("rounded")) v["rounded"] = v["w"];
  }
};

// Nesterov's momentum replaces the gradient.
struct MomentumUpdate : OpCase {
  bool nesterov;
  MomentumUpdate(Index n, double coefficient, DType moments = DType::f32, bool with_nesterov = false)
      : nesterov(with_nesterov) {
    note = fmt::format("coefficient {}, moments {}, nesterov {}", coefficient, info(moments).name, nesterov);
    in("coefficient", {1}, {coefficient}, DType::f32);
    in_out("g", {n}, DType::f32);
    in_out("m", {n}, moments);
  }
  void run(Device& b) override {
    ops::run(b,
             ops::MomentumUpdate{
                 .coefficient = at("coefficient"), .g = at("g"), .momentum = 0.9f, .m = at("m"), .nesterov = nesterov});
  }
  void expect(Values& v) override {
    if (std::isnan(v["coefficient"][0])) return;
    const Numbers ahead = ref::momentum_update(0.9f, v["coefficient"][0], v["g"], v["m"]);
    if (nesterov) v["g"] = ahead;
  }
};

struct ApplyUpdate : OpCase {
  float decay;
  ApplyUpdate(Index n, float weight_decay, double coefficient, DType updates = DType::f32) : decay(weight_decay) {
    note = fmt::format("decay {}, coefficient {}, updates {}", decay, coefficient, info(updates).name);
    in("coefficient", {1}, {coefficient}, DType::f32);
    in("lr", {1}, {1e-2}, DType::f32);
    in("update", {n}, updates);
    in_out("w", {n}, DType::f32);
    if (compute == DType::bf16) in_out("rounded", {n});
  }
  void run(Device& b) override {
    ops::run(b, ops::ApplyUpdate{.coefficient = at("coefficient"),
                                 .lr = at("lr"),
                                 .update = at("update"),
                                 .weight_decay = decay,
                                 .w = at("w"),
                                 .rounded = at("rounded")});
  }
  void expect(Values& v) override {
    if (std::isnan(v["coefficient"][0])) return;
    ref::apply_update(v["lr"][0], decay, v["update"], v["w"]);
    if (v.count("rounded")) v["rounded"] = v["w"];
  }
};

}  // namespace sy::numerics
