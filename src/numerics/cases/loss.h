// Cases of the embedding, the loss and the updates of weights (op_case.h).
#pragma once

#include <cmath>
#include <limits>

#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/optimizer.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

template <class Operation>
struct EmbeddingCase : OpCase {
  Operation op{};
  Index t, vocab, d;
  EmbeddingCase(Index t_, Index vocab_, Index d_, Index begin) : t(t_), vocab(vocab_), d(d_) {
    op.vocab_begin = begin;
    note = fmt::format("vocabulary from {}", begin);
    // Some are on other ranks.
    in({"ids", op.ids}, {t}, whole("ids", {t}, 0, begin + vocab + 2), DType::i32);
  }
  void run(Device& b) override { ops::run(b, op); }
  Numbers forward(Values& v) const { return ref::embedding(vocab, d, op.vocab_begin, v["ids"], v["table"]); }
};

struct EmbeddingForward : EmbeddingCase<ops::EmbeddingForward> {
  EmbeddingForward(Index t_, Index vocab_, Index d_, Index begin) : EmbeddingCase(t_, vocab_, d_, begin) {
    in({"table", op.table}, {vocab, d});
    out({"y", op.y}, {t, d});
    tolerance = 0;
  }
  void expect(Values& v) override { v["y"] = forward(v); }
};

struct EmbeddingBackward : EmbeddingCase<ops::EmbeddingBackward> {
  EmbeddingBackward(Index t_, Index vocab_, Index d_, Index begin) : EmbeddingCase(t_, vocab_, d_, begin) {
    in({"dy", op.dy}, {t, d});
    hidden("table", {vocab, d});
    accumulate_gradient({"table", op.dtable}, {vocab, d}, DType::f32);
  }
  double loss(Values& v) override { return ref::dot(v["dy"], forward(v)); }
};

template <class Operation>
struct CrossEntropyCase : OpCase {
  Operation op{};
  Index t, v_all;
  CrossEntropyCase(CrossEntropyDesc d, Rows s) : t(s.t), v_all(s.d) {
    op.desc = d;
    note = fmt::format("vocabulary from {} softcap {}", d.vocab_begin, d.softcap);
    Numbers targets = whole("targets", {t}, 0, d.vocab_begin + v_all + 1);
    for (std::size_t i = 2; i < targets.size(); i += 3) targets[i] = -1;
    in({"targets", op.targets}, {t}, targets, DType::i32);
  }
  void run(Device& b) override { ops::run(b, op); }
  Numbers partial(Values& v) const { return ref::cross_entropy_partial(op.desc, v_all, v["logits"], v["targets"]); }
};

struct CrossEntropyForward : CrossEntropyCase<ops::CrossEntropyForward> {
  CrossEntropyForward(CrossEntropyDesc d, Rows s, double deviation) : CrossEntropyCase(d, s) {
    in({"logits", op.logits}, {t, v_all}, normal("logits", {t, v_all}, deviation), DType::f32);
    out({"partial", op.partial}, {t, 3}, DType::f32);
    // Without vectors, as under sanitizers, the terms of a long sum are added one by one.
    tolerance = v_all > 10000 ? 2e-5 : 3e-6;
  }
  void expect(Values& v) override { v["partial"] = partial(v); }
};

struct CrossEntropyLoss : OperationCase<ops::CrossEntropyLoss> {
  Index shards;
  CrossEntropyLoss(Index shards_, Index t, bool empty_shard) : shards(shards_) {
    Numbers targets = whole("targets", {t}, -1, 10), partials = normal("partials", {shards, t, 3}, 5);
    for (std::size_t i = 1; i < partials.size(); i += 3) partials[i] = 1 + std::abs(partials[i]);
    if (empty_shard)  // the first rank has no rows of the vocabulary
      for (Index i = 0; i < t; ++i)
        partials[3 * i] = -std::numeric_limits<double>::infinity(), partials[3 * i + 1] = partials[3 * i + 2] = 0;
    in({"partials", op.partials}, {shards, t, 3}, partials, DType::f32);
    in({"targets", op.targets}, {t}, targets, DType::i32);
    out({"lse", op.lse}, {t}, DType::f32);
    out({"loss", op.loss}, {t}, DType::f32);
  }
  void expect(Values& v) override {
    const ref::Loss want = ref::cross_entropy_loss(shards, v["partials"], v["targets"]);
    v["lse"] = want.lse;
    v["loss"] = want.loss;
  }
};

struct CrossEntropyBackward : CrossEntropyCase<ops::CrossEntropyBackward> {
  static constexpr double total = 1.4, z_loss = 0.03;
  CrossEntropyBackward(CrossEntropyDesc d, Rows s, bool in_logits) : CrossEntropyCase(d, s) {
    op.desc.z_loss = z_loss;
    in({"total", op.total}, {1}, {total}, DType::f64);
    if (in_logits)
      in_out({"logits", [this](View x) { op.logits = op.dlogits = x; }}, {t, v_all}, DType::f32);
    else
      in({"logits", op.logits}, {t, v_all}, DType::f32);
    in({"lse", op.lse}, {t},
       v_all ? ref::cross_entropy_loss(1, partial(values()), values()["targets"]).lse : Numbers(t), DType::f32);
    if (!in_logits) out({"dlogits", op.dlogits}, {t, v_all});
    gradients = {{in_logits ? "logits" : "dlogits", "logits"}};
  }
  double loss(Values& v) override {
    const ref::Loss l = ref::cross_entropy_loss(1, partial(v), v["targets"]);
    double sum = 0;
    for (Index i = 0; i < t; ++i)
      if (v["targets"][i] >= 0) sum += (l.loss[i] + z_loss * l.lse[i] * l.lse[i]) / total;
    return sum;
  }
};

struct LossSums : OperationCase<ops::LossSums> {
  explicit LossSums(Index t) {
    Numbers targets = whole("targets", {t}, -1, 2), losses = normal("losses", {t});
    for (std::size_t i = 0; i < targets.size(); ++i)
      if (targets[i] < 0) losses[i] = 0;
    in({"losses", op.losses}, {t}, losses, DType::f32);
    in({"lse", op.lse}, {t}, DType::f32);
    in({"targets", op.targets}, {t}, targets, DType::i32);
    accumulate({"sums", op.sums}, {2}, DType::f64);
  }
  void expect(Values& v) override {
    for (std::size_t i = 0; i < v["lse"].size(); ++i) {
      v["sums"][0] += v["losses"][i];
      v["sums"][1] += v["targets"][i] < 0 ? 0 : v["lse"][i] * v["lse"][i];
    }
  }
};

struct ClipCoefficient : OperationCase<ops::ClipCoefficient> {
  ClipCoefficient(double squares, float clip, double limit) {
    op.clip = clip;
    op.limit = limit;
    note = fmt::format("clip {}, limit {}", clip, limit);
    in({"squares", op.squares}, {1}, {squares}, DType::f64);
    out({"coefficient", op.coefficient}, {1}, DType::f32);
  }
  void expect(Values& v) override {
    const double norm = std::sqrt(v["squares"][0]);
    v["coefficient"] = {!std::isfinite(norm) || norm > op.limit ? std::nan("")
                        : op.clip > 0 && norm > op.clip         ? op.clip / norm
                                                                : 1};
  }
};

struct AdamWCase : OperationCase<ops::AdamW> {
  AdamWCase(Index n, float decay, double coefficient, DType moments = DType::f32) {
    op.beta1 = 0.9f;
    op.beta2 = 0.95f;
    op.eps = 1e-8f;
    op.weight_decay = decay;
    note = fmt::format("coefficient {}, moments {}", coefficient, info(moments).name);
    in({"coefficient", op.coefficient}, {1}, {coefficient}, DType::f32);
    in({"step_scalars", op.step_scalars}, {3}, {1e-2, 1 - 0.729, 1 - 0.857375}, DType::f32);
    in({"g", op.g}, {n}, DType::f32);
    in_out({"w", op.w}, {n}, DType::f32);
    in_out({"m", op.m}, {n}, moments);
    Numbers v = normal("v", {n});
    for (double& x : v) x *= x;
    in_out({"v", op.v}, {n}, v, moments);
    if (compute == DType::bf16) in_out({"rounded", op.rounded}, {n});
  }
  void expect(Values& v) override {
    if (std::isnan(v["coefficient"][0])) return;
    ref::adamw(op, v["coefficient"][0], v["step_scalars"], v["g"], v["w"], v["m"], v["v"]);
    if (v.count("rounded")) v["rounded"] = v["w"];
  }
};

// The direction of the update replaces the gradient. It has no rounding of m.
struct MomentumUpdate : OperationCase<ops::MomentumUpdate> {
  MomentumUpdate(Index n, double coefficient, DType moments = DType::f32, bool nesterov = false) {
    op.momentum = 0.9f;
    op.nesterov = nesterov;
    note = fmt::format("coefficient {}, moments {}, nesterov {}", coefficient, info(moments).name, nesterov);
    in({"coefficient", op.coefficient}, {1}, {coefficient}, DType::f32);
    in_out({"g", op.g}, {n}, DType::f32);
    in_out({"m", op.m}, {n}, moments);
  }
  void expect(Values& v) override {
    if (std::isnan(v["coefficient"][0])) return;
    const Numbers ahead = ref::momentum_update(op.momentum, v["coefficient"][0], v["g"], v["m"]);
    v["g"] = op.nesterov ? ahead : v["m"];
  }
};

struct ApplyUpdate : OperationCase<ops::ApplyUpdate> {
  ApplyUpdate(Index n, float decay, double coefficient, DType updates = DType::f32) {
    op.weight_decay = decay;
    note = fmt::format("decay {}, coefficient {}, updates {}", decay, coefficient, info(updates).name);
    in({"coefficient", op.coefficient}, {1}, {coefficient}, DType::f32);
    in({"lr", op.lr}, {1}, {1e-2}, DType::f32);
    in({"update", op.update}, {n}, updates);
    in_out({"w", op.w}, {n}, DType::f32);
    if (compute == DType::bf16) in_out({"rounded", op.rounded}, {n});
  }
  void expect(Values& v) override {
    if (std::isnan(v["coefficient"][0])) return;
    ref::apply_update(v["lr"][0], op.weight_decay, v["update"], v["w"]);
    if (v.count("rounded")) v["rounded"] = v["w"];
  }
};

}  // namespace sy::numerics
