// Cases of attention, of the cache of keys and values, and of heads (op_case.h).
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/ops/attention.h"
#include "kernels/ops/heads.h"
#include "kernels/ops/qk_clip.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

struct AttentionShape {
  Index b, s, h, k, hd;
};

struct AttentionCase : OpCase {
  AttentionDesc desc;
  AttentionShape a;
  AttentionCase(AttentionDesc d, AttentionShape shape) : desc(d), a(shape) {
    note = fmt::format("causal {} window {} softcap {}", d.mask.causal, d.mask.window, d.softcap);
    in("qkv", {a.b, a.s, a.h + 2 * a.k, a.hd});
    tolerance = gradient_tolerance = 2e-5;
    bf16_tolerance = 2e-2;  // probabilities are rounded too
  }
  Heads q(View qkv) const { return {qkv, 0, a.h}; }
  Heads k(View qkv) const { return {qkv, a.h, a.k}; }
  Heads v(View qkv) const { return {qkv, a.h + a.k, a.k}; }
  ref::Attention forward(Values& v) const { return ref::attention(desc, a.b, a.s, a.h, a.k, a.hd, v["qkv"]); }
};

struct AttentionForward : AttentionCase {
  AttentionForward(AttentionDesc d, AttentionShape shape) : AttentionCase(d, shape) {
    out("out", {a.b, a.s, a.h, a.hd});
    out("lse", {a.b, a.h, a.s}, DType::f32);
    out("largest", {a.b, a.h, a.s}, DType::f32);
  }
  void run(Device& b) override {
    const View qkv = at("qkv");
    ops::run(b, ops::AttentionForward{.q = q(qkv),
                                      .k = k(qkv),
                                      .v = v(qkv),
                                      .desc = desc,
                                      .out = at("out"),
                                      .lse = at("lse"),
                                      .largest = at("largest")});
  }
  void expect(Values& v) override {
    const ref::Attention want = forward(v);
    v["out"] = want.out;
    v["lse"] = want.lse;
    v["largest"] = want.largest;
  }
};

// Heads whose largest logits are below and above the earlier maximum.
struct MaxLogits : OpCase {
  MaxLogits(Index b, Index h, Index s) {
    in("largest", {b, h, s}, DType::f32);
    in_out("max_logits", {h}, DType::f32);
  }
  void run(Device& b) override {
    ops::run(b, ops::MaxLogits{.largest = at("largest"), .max_logits = at("max_logits")});
  }
  void expect(Values& v) override {
    Numbers &most = v["max_logits"], &largest = v["largest"];
    const Index heads = std::ssize(most), rows = std::ssize(largest) / heads, s = at("largest").dim(2);
    for (Index row = 0; row < rows / s; ++row)
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < s; ++i) most[h] = std::max(most[h], largest[(row * heads + h) * s + i]);
  }
};

// Elements [offset, offset + n) of the weight of H query heads, or of K key heads.
struct QkClip : OpCase {
  Index kv_heads, head_elements, shared, offset;
  bool keys;
  static constexpr float threshold = 2;
  QkClip(Index heads, Index kv, bool of_keys, Index elements, Index shared_elements, Index begin, Index n,
         double coefficient)
      : kv_heads(kv), head_elements(elements), shared(shared_elements), offset(begin), keys(of_keys) {
    note = fmt::format("{} heads of {}, keys {}, {} of {} shared, from {}, coefficient {}", heads, kv, keys, shared,
                       elements, offset, coefficient);
    in("coefficient", {1}, {coefficient}, DType::f32);
    Numbers most;
    for (Index h = 0; h < heads; ++h) most.push_back(h % 3 == 2 ? 1.5 : 3 + static_cast<double>(h));
    if (heads > 4) most[1] = std::nan("");
    in("max_logits", {heads}, most, DType::f32);
    in_out("w", {n}, DType::f32);
    if (compute == DType::bf16) in_out("rounded", {n});
  }
  void run(Device& b) override {
    ops::run(b, ops::QkClip{.coefficient = at("coefficient"),
                            .max_logits = at("max_logits"),
                            .threshold = threshold,
                            .kv_heads = kv_heads,
                            .keys = keys,
                            .head_elements = head_elements,
                            .shared = shared,
                            .offset = offset,
                            .w = at("w"),
                            .rounded = at("rounded")});
  }
  void expect(Values& v) override {
    if (std::isnan(v["coefficient"][0])) return;
    const Numbers& most = v["max_logits"];
    const Index group = std::ssize(most) / kv_heads;
    const auto gamma = [&](Index h) { return most[h] > threshold ? threshold / most[h] : 1.0; };
    Numbers& w = v["w"];
    for (Index i = 0; i < std::ssize(w); ++i) {
      const Index head = (offset + i) / head_elements, kv = keys ? head : head / group;
      double least = 1;
      for (Index h = kv * group; h < (kv + 1) * group; ++h) least = std::min(least, gamma(h));
      const bool rotary = (offset + i) % head_elements < shared;
      const double factor = keys ? std::sqrt(least) : rotary ? gamma(head) : gamma(head) / std::sqrt(least);
      w[i] *= factor;
      // The rounded weight of a head that is not clipped stays.
      if (v.count("rounded") && factor != 1) v["rounded"][i] = w[i];
    }
  }
};

struct AttentionBackward : AttentionCase {
  AttentionBackward(AttentionDesc d, AttentionShape shape) : AttentionCase(d, shape) {
    const ref::Attention saved = forward(values());
    in("out", {a.b, a.s, a.h, a.hd}, saved.out);
    in("lse", {a.b, a.h, a.s}, saved.lse, DType::f32);
    in("dout", {a.b, a.s, a.h, a.hd});
    out_gradient("qkv", {a.b, a.s, a.h + 2 * a.k, a.hd});
  }
  void run(Device& b) override {
    const View x = at("qkv"), dx = at("dqkv");
    ops::run(b, ops::AttentionBackward{.dout = at("dout"),
                                       .q = q(x),
                                       .k = k(x),
                                       .v = v(x),
                                       .out = at("out"),
                                       .lse = at("lse"),
                                       .desc = desc,
                                       .dq = q(dx),
                                       .dk = k(dx),
                                       .dv = v(dx)});
  }
  double loss(Values& v) override { return ref::dot(v["dout"], forward(v).out); }
};

// Gradients of biases by distance and of sinks.
struct AttentionBackwardLearned : AttentionCase {
  Index biases;  // number of biases per head, at least the number of positions
  AttentionBackwardLearned(AttentionDesc d, AttentionShape shape, Index biases_)
      : AttentionCase(d, shape), biases(biases_) {
    in("bias", {a.h, biases}, DType::f32);
    in("sinks", {a.h}, DType::f32);
    const ref::Attention saved = forward_learned(values());
    in("out", {a.b, a.s, a.h, a.hd}, saved.out);
    in("lse", {a.b, a.h, a.s}, saved.lse, DType::f32);
    in("dout", {a.b, a.s, a.h, a.hd});
    accumulate_gradient("bias", {a.h, biases}, DType::f32);
    accumulate_gradient("sinks", {a.h}, DType::f32);
    if (compute == DType::bf16) gradient_tolerance = 2e-2;  // sums of products of rounded values
  }
  // The reference orders biases by ascending distance, the operation by descending distance.
  ref::Attention forward_learned(Values& v) {
    Numbers bias = v["bias"];
    for (auto head = bias.begin(); head != bias.end(); head += biases) std::reverse(head, head + biases);
    return ref::attention(desc, a.b, a.s, a.h, a.k, a.hd, v["qkv"],
                          {bias, v["sinks"], desc.mask.causal ? 0 : biases / 2});
  }
  void run(Device& device) override {
    const View x = at("qkv");
    AttentionDesc learned = desc;
    learned.bias = at("bias");
    learned.sinks = at("sinks");
    ops::run(device, ops::AttentionBackwardLearned{.dout = at("dout"),
                                                   .q = q(x),
                                                   .k = k(x),
                                                   .v = v(x),
                                                   .out = at("out"),
                                                   .lse = at("lse"),
                                                   .desc = learned,
                                                   .dbias = at("dbias"),
                                                   .dsinks = at("dsinks")});
  }
  double loss(Values& v) override { return ref::dot(v["dout"], forward_learned(v).out); }
};

// One query for each sequence of a cache of C positions, with offsets that differ.
struct AttentionOfCache : OpCase {
  Index B, C, H, K, hd;
  AttentionOfCache(Index sequences, Index capacity, Index heads, Index kv_heads, Index width)
      : B(sequences), C(capacity), H(heads), K(kv_heads), hd(width) {
    in("q", {B, 1, H, hd});
    in("k", {B, C, K, hd});
    in("v", {B, C, K, hd});
    in("offsets", {B}, whole("offsets", {B}, 0, C), DType::i32);
    out("out", {B, 1, H, hd});
    out("lse", {B, H, 1}, DType::f32);
    tolerance = 2e-5;
    bf16_tolerance = 2e-2;
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(hd)); }
  void run(Device& device) override {
    AttentionDesc desc{.scale = scale()};
    desc.mask.query_offsets = at("offsets");
    ops::run(device, ops::AttentionForward{
                         .q = at("q"), .k = at("k"), .v = at("v"), .desc = desc, .out = at("out"), .lse = at("lse")});
  }
  void expect(Values& v) override {
    const auto heads = [](const Numbers& x, Index positions, Index n, Index width) {
      return ref::HeadsOf{x.data(), positions, n, 0, n, width};
    };
    const ref::Attention want = ref::attention(
        B, heads(v["q"], 1, H, hd), heads(v["k"], C, K, hd), heads(v["v"], C, K, hd), static_cast<double>(scale()), 0.0,
        [&](Index b, Index, Index j) { return j <= ref::whole(v["offsets"][static_cast<std::size_t>(b)]); });
    v["out"] = want.out;
    v["lse"] = want.lse;
  }
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
    ops::run(b, ops::KvCacheAppend{.x = heads_of(at("x"), 1, N), .offsets = at("offsets"), .y = at("y")});
  }
  void expect(Values& v) override {
    for (Index b = 0; b < B; ++b)
      for (Index i = 0; i < S; ++i)
        for (Index c = 0; c < N * w; ++c)
          v["y"][(b * C + ref::whole(v["offsets"][b]) + i) * N * w + c] = v["x"][(b * S + i) * (N + 2) * w + w + c];
  }
};

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
  void run(Device& b) override { ops::run(b, ops::BroadcastHeads{.x = x.of(at("x")), .y = y.of(at("y"))}); }
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
  void run(Device& b) override { ops::run(b, ops::ReduceHeads{.x = x.of(at("x")), .y = y.of(at("y"))}); }
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
    ops::run(b, ops::BatchedHeadGemm{.x = x.of(at("x")), .w = at("w"), .pass = pass, .y = y.of(at("y"))});
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

}  // namespace sy::numerics
