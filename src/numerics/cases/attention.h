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

template <class Operation>
struct AttentionCase : OpCase {
  Operation op{};
  AttentionShape a;
  AttentionCase(AttentionDesc d, AttentionShape shape) : a(shape) {
    op.desc = d;
    note = fmt::format("causal {} window {} softcap {}", d.mask.causal, d.mask.window, d.softcap);
    in({"qkv", [this](View qkv) { split(qkv, op.q, op.k, op.v); }}, {a.b, a.s, a.h + 2 * a.k, a.hd});
    tolerance = gradient_tolerance = 2e-5;
    bf16_tolerance = 2e-2;  // probabilities are rounded too
  }
  template <class H>
  void split(View qkv, H& q, H& k, H& v) const {
    q = heads_of(qkv, 0, a.h);
    k = heads_of(qkv, a.h, a.k);
    v = heads_of(qkv, a.h + a.k, a.k);
  }
  void run(Device& b) override { ops::run(b, op); }
  ref::Attention forward(Values& v) const { return ref::attention(op.desc, a.b, a.s, a.h, a.k, a.hd, v["qkv"]); }
};

struct AttentionForward : AttentionCase<ops::AttentionForward> {
  AttentionForward(AttentionDesc d, AttentionShape shape) : AttentionCase(d, shape) {
    out({"out", op.out}, {a.b, a.s, a.h, a.hd});
    out({"lse", op.lse}, {a.b, a.h, a.s}, DType::f32);
    out({"largest", op.largest}, {a.b, a.h, a.s}, DType::f32);
  }
  void expect(Values& v) override {
    const ref::Attention want = forward(v);
    v["out"] = want.out;
    v["lse"] = want.lse;
    v["largest"] = want.largest;
  }
};

// Heads whose largest logits are below and above the earlier maximum.
struct MaxLogits : OperationCase<ops::MaxLogits> {
  MaxLogits(Index b, Index h, Index s) {
    in({"largest", op.largest}, {b, h, s}, DType::f32);
    in_out({"max_logits", op.max_logits}, {h}, DType::f32);
  }
  void expect(Values& v) override {
    Numbers &most = v["max_logits"], &largest = v["largest"];
    const Index heads = std::ssize(most), rows = std::ssize(largest) / heads, s = op.largest.dim(2);
    for (Index row = 0; row < rows / s; ++row)
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < s; ++i) most[h] = std::max(most[h], largest[(row * heads + h) * s + i]);
  }
};

// Elements [offset, offset + n) of the weight of H query heads, or of K key heads.
struct QkClip : OperationCase<ops::QkClip> {
  QkClip(Index heads, Index kv_heads, bool keys, Index head_elements, Index shared, Index offset, Index n,
         double coefficient) {
    op.threshold = 2;
    op.kv_heads = kv_heads;
    op.keys = keys;
    op.head_elements = head_elements;
    op.shared = shared;
    op.offset = offset;
    note = fmt::format("{} heads of {}, keys {}, {} of {} shared, from {}, coefficient {}", heads, kv_heads, keys,
                       shared, head_elements, offset, coefficient);
    in({"coefficient", op.coefficient}, {1}, {coefficient}, DType::f32);
    Numbers most;
    for (Index h = 0; h < heads; ++h) most.push_back(h % 3 == 2 ? 1.5 : 3 + static_cast<double>(h));
    if (heads > 4) most[1] = std::nan("");
    in({"max_logits", op.max_logits}, {heads}, most, DType::f32);
    in_out({"w", op.w}, {n}, DType::f32);
    if (compute == DType::bf16) in_out({"rounded", op.rounded}, {n});
  }
  void expect(Values& v) override {
    if (std::isnan(v["coefficient"][0])) return;
    const Numbers& most = v["max_logits"];
    const Index group = std::ssize(most) / op.kv_heads;
    const auto gamma = [&](Index h) { return most[h] > op.threshold ? op.threshold / most[h] : 1.0; };
    Numbers& w = v["w"];
    for (Index i = 0; i < std::ssize(w); ++i) {
      const Index head = (op.offset + i) / op.head_elements, kv = op.keys ? head : head / group;
      double least = 1;
      for (Index h = kv * group; h < (kv + 1) * group; ++h) least = std::min(least, gamma(h));
      const bool rotary = (op.offset + i) % op.head_elements < op.shared;
      const double factor = op.keys ? std::sqrt(least) : rotary ? gamma(head) : gamma(head) / std::sqrt(least);
      w[i] *= factor;
      // The rounded weight of a head that is not clipped stays.
      if (v.count("rounded") && factor != 1) v["rounded"][i] = w[i];
    }
  }
};

struct AttentionBackward : AttentionCase<ops::AttentionBackward> {
  AttentionBackward(AttentionDesc d, AttentionShape shape) : AttentionCase(d, shape) {
    const ref::Attention saved = forward(values());
    in({"out", op.out}, {a.b, a.s, a.h, a.hd}, saved.out);
    in({"lse", op.lse}, {a.b, a.h, a.s}, saved.lse, DType::f32);
    in({"dout", op.dout}, {a.b, a.s, a.h, a.hd});
    out_gradient({"qkv", [this](View dqkv) { split(dqkv, op.dq, op.dk, op.dv); }}, {a.b, a.s, a.h + 2 * a.k, a.hd});
  }
  double loss(Values& v) override { return ref::dot(v["dout"], forward(v).out); }
};

// Gradients of biases by distance and of sinks.
struct AttentionBackwardLearned : AttentionCase<ops::AttentionBackwardLearned> {
  Index biases;  // number of biases per head, at least the number of positions
  AttentionBackwardLearned(AttentionDesc d, AttentionShape shape, Index biases_)
      : AttentionCase(d, shape), biases(biases_) {
    in({"bias", op.desc.bias}, {a.h, biases}, DType::f32);
    in({"sinks", op.desc.sinks}, {a.h}, DType::f32);
    const ref::Attention saved = forward_learned(values());
    in({"out", op.out}, {a.b, a.s, a.h, a.hd}, saved.out);
    in({"lse", op.lse}, {a.b, a.h, a.s}, saved.lse, DType::f32);
    in({"dout", op.dout}, {a.b, a.s, a.h, a.hd});
    accumulate_gradient({"bias", op.dbias}, {a.h, biases}, DType::f32);
    accumulate_gradient({"sinks", op.dsinks}, {a.h}, DType::f32);
    if (compute == DType::bf16) gradient_tolerance = 2e-2;  // sums of products of rounded values
  }
  // The reference orders biases by ascending distance, the operation by descending distance.
  ref::Attention forward_learned(Values& v) {
    Numbers bias = v["bias"];
    for (auto head = bias.begin(); head != bias.end(); head += biases) std::reverse(head, head + biases);
    return ref::attention(op.desc, a.b, a.s, a.h, a.k, a.hd, v["qkv"],
                          {bias, v["sinks"], op.desc.mask.causal ? 0 : biases / 2});
  }
  double loss(Values& v) override { return ref::dot(v["dout"], forward_learned(v).out); }
};

// One query for each sequence of a cache of C positions, with offsets that differ.
struct AttentionOfCache : OperationCase<ops::AttentionForward> {
  Index B, C, H, K, hd;
  AttentionOfCache(Index sequences, Index capacity, Index heads, Index kv_heads, Index width)
      : B(sequences), C(capacity), H(heads), K(kv_heads), hd(width) {
    op.desc.scale = 1 / std::sqrt(static_cast<float>(hd));
    in({"q", op.q}, {B, 1, H, hd});
    in({"k", op.k}, {B, C, K, hd});
    in({"v", op.v}, {B, C, K, hd});
    in({"offsets", op.desc.mask.query_offsets}, {B}, whole("offsets", {B}, 0, C), DType::i32);
    out({"out", op.out}, {B, 1, H, hd});
    out({"lse", op.lse}, {B, H, 1}, DType::f32);
    tolerance = 2e-5;
    bf16_tolerance = 2e-2;
  }
  void expect(Values& v) override {
    const auto heads = [](const Numbers& x, Index positions, Index n, Index width) {
      return ref::HeadsOf{x.data(), positions, n, 0, n, width};
    };
    const ref::Attention want = ref::attention(
        B, heads(v["q"], 1, H, hd), heads(v["k"], C, K, hd), heads(v["v"], C, K, hd), op.desc.scale, 0.0,
        [&](Index b, Index, Index j) { return j <= ref::whole(v["offsets"][static_cast<std::size_t>(b)]); });
    v["out"] = want.out;
    v["lse"] = want.lse;
  }
};

// Appends heads 1 to N of the N + 2 heads of each token to a cache of C positions.
struct KvCacheAppend : OperationCase<ops::KvCacheAppend> {
  Index B, S, C, N, w;
  KvCacheAppend(Index sequences, Index tokens, Index capacity, Index heads, Index width)
      : B(sequences), S(tokens), C(capacity), N(heads), w(width) {
    in({"x", [this](View x) { op.x = heads_of(x, 1, N); }}, {B, S, N + 2, w});
    in({"offsets", op.offsets}, {B}, whole("offsets", {B}, 0, C - S + 1), DType::i32);
    in_out({"y", op.y}, {B, C, N, w});
    tolerance = 0;
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
  Heads of(View x) const { return heads_of(x, first_head, heads).columns(first, width); }
};
// An operation of two slices.
template <class Operation>
struct ColumnsCase : OpCase {
  Operation op{};
  Index T;
  Columns x, y;
  ColumnsCase(Index B, Index S, Columns from, Columns to) : T(B * S), x(from), y(to) {
    in({"x", [this](View v) { op.x = x.of(v); }}, x.shape(B, S));
    in_out({"y", [this](View v) { op.y = y.of(v); }}, y.shape(B, S));
  }
  void run(Device& b) override { ops::run(b, op); }
};
// Copies a slice of heads: all heads, or one head to all.
struct BroadcastHeads : ColumnsCase<ops::BroadcastHeads> {
  BroadcastHeads(Index B, Index S, Columns from, Columns to) : ColumnsCase(B, S, from, to) { tolerance = 0; }
  void expect(Values& v) override {
    for (Index t = 0; t < T; ++t)
      for (Index h = 0; h < y.heads; ++h)
        for (Index c = 0; c < y.width; ++c) v["y"][y.offset(t, h, c)] = v["x"][x.offset(t, x.heads == 1 ? 0 : h, c)];
  }
};

// Sums a slice of heads. It must be the gradient of the copy between the same slices.
struct ReduceHeads : ColumnsCase<ops::ReduceHeads> {
  ReduceHeads(Index B, Index S, Columns from, Columns to) : ColumnsCase(B, S, from, to) { tolerance = 2e-6; }
  void expect(Values& v) override {
    for (Index t = 0; t < T; ++t)
      for (Index c = 0; c < y.width; ++c) {
        double& sum = v["y"][y.offset(t, 0, c)];
        sum = 0;
        for (Index h = 0; h < x.heads; ++h) sum += v["x"][x.offset(t, h, c)];
      }
  }
};

struct BatchedHeadGemm : ColumnsCase<ops::BatchedHeadGemm> {
  bool fprop;
  Index n, q;
  BatchedHeadGemm(GemmPass pass, Index B, Index S, Columns from, Columns to)
      : ColumnsCase(B, S, from, to),
        fprop(pass == GemmPass::fprop),
        n(fprop ? to.width : from.width),
        q(fprop ? from.width : to.width) {
    op.pass = pass;
    note = fprop ? "output" : "input";
    in({"w", op.w}, {x.heads, n, q});
    tolerance = 5e-6;
  }
  void expect(Values& v) override {
    for (Index t = 0; t < T; ++t)
      for (Index h = 0; h < y.heads; ++h)
        for (Index i = 0; i < y.width; ++i) {
          double& sum = v["y"][y.offset(t, h, i)];
          sum = 0;
          for (Index j = 0; j < x.width; ++j)
            sum += v["x"][x.offset(t, h, j)] * v["w"][(h * n + (fprop ? i : j)) * q + (fprop ? j : i)];
        }
  }
};

}  // namespace sy::numerics
