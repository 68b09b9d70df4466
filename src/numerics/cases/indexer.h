// Cases of the lightning indexer of sparse attention (op_case.h).
#pragma once

#include <cmath>

#include "kernels/ops/indexer.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

// Queries [first, first + t) of b sequences of s queries, which are the last of `keys` keys. With a
// cache, their offsets differ. With documents, keys = s, and each document has five tokens.
struct IndexerShape {
  Index b, s, keys, heads, width, first, t;
  bool documents = false, cache = false;
};

template <class Operation>
struct IndexerCase : OpCase {
  Operation op{};
  IndexerShape a;
  explicit IndexerCase(IndexerShape shape) : a(shape) {
    IndexScores& operands = op.scores;
    operands.queries = a.s;
    operands.first = a.first;
    operands.mask.query_offset = a.cache ? 0 : a.keys - a.s;
    operands.scale = static_cast<float>(scale());
    note = fmt::format("{} of {} queries from {} on", a.t, a.b * a.s, a.first);
    in({"q", operands.q}, {a.t, a.heads, a.width});
    in({"weights", operands.weights}, {a.t, a.heads});
    in({"k", operands.k}, {a.b, a.keys, a.width});
    if (a.documents) {
      Numbers starts;
      for (Index i = 0; i < a.b * a.s; ++i) starts.push_back(static_cast<double>(i % a.s - i % a.s % 5));
      in({"document_start", operands.mask.document_start}, {a.b, a.s}, starts, DType::i32);
    }
    if (a.cache)
      in({"offsets", operands.mask.query_offsets}, {a.b}, whole("offsets", {a.b}, 0, a.keys - a.s + 1), DType::i32);
    tolerance = 1e-5;
  }
  void run(Device& b) override { ops::run(b, op); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(a.heads * a.width)); }
  ref::IndexOperands reference(Values& v) const {
    return {v["q"], v["weights"], v["k"], a.heads, a.width, a.s, a.keys, a.first, scale()};
  }
  Numbers scores(Values& v) const {
    return ref::index_scores(reference(v), [&](Index b, Index i, Index j) {
      const Index p = i + (a.cache ? ref::whole(v["offsets"][static_cast<std::size_t>(b)]) : a.keys - a.s);
      return j <= p && (!a.documents || j >= i / 5 * 5);
    });
  }
  // Adds the operand `selected`: the n keys of the largest scores; no selection if n is 0.
  void select(Index n) {
    if (n > 0) in({"selected", op.selected}, {a.t, n}, ref::topk_keys(a.keys, n, scores(values())), DType::i32);
  }
};

struct TopkKeys : IndexerCase<ops::TopkKeys> {
  Index n;
  TopkKeys(IndexerShape shape, Index count) : IndexerCase(shape), n(count) {
    out({"selected", op.selected}, {a.t, n}, DType::i32);
  }
  void expect(Values& v) override { v["selected"] = ref::topk_keys(a.keys, n, scores(v)); }
};

// All weights are 0, and so are all scores.
struct TopkKeysOfEqualScores : TopkKeys {
  TopkKeysOfEqualScores(IndexerShape shape, Index count) : TopkKeys(shape, count) {
    for (double& weight : values()["weights"]) weight = 0;
  }
};

struct IndexerLoss : IndexerCase<ops::IndexerLoss> {
  IndexerLoss(IndexerShape shape, Index n) : IndexerCase(shape) {
    op.factor = 0.25f;
    select(n);
    const Index columns = n > 0 ? n : a.keys;
    Numbers attention = normal("attention", {a.t, columns});
    const Numbers of_columns = columns_of(scores(values()), ref::hidden_score);
    for (std::size_t i = 0; i < attention.size(); ++i) {
      attention[i] = of_columns[i] == ref::hidden_score ? 0 : std::abs(attention[i]);
      if (i / static_cast<std::size_t>(columns) == 1) attention[i] = 0;  // query 1 has no weights
    }
    in({"attention", op.attention}, {a.t, columns}, attention, DType::f32);
    out({"dscores", op.dscores}, {a.t, columns}, DType::f32);
    accumulate({"loss", op.loss}, {1}, DType::f64);
    tolerance = 2e-5;
  }
  Numbers columns_of(const Numbers& of_keys, double absent) {
    return ref::selected_values(a.keys, of_keys, values()["selected"], absent);
  }
  void expect(Values& v) override {
    const Index n = static_cast<Index>(v["attention"].size()) / a.t;
    const ref::IndexerLoss want = ref::indexer_loss(n, columns_of(scores(v), ref::hidden_score), v["attention"]);
    v["loss"][0] += want.loss;
    v["dscores"] = want.dscores;
    for (double& gradient : v["dscores"]) gradient *= static_cast<double>(op.factor);
  }
};

struct IndexerBackward : IndexerCase<ops::IndexerBackward> {
  IndexerBackward(IndexerShape shape, Index n) : IndexerCase(shape) {
    select(n);
    in({"dscores", op.dscores}, {a.t, n > 0 ? n : a.keys}, DType::f32);
    out({"dq", op.dq}, {a.t, a.heads, a.width});
    out({"dweights", op.dweights}, {a.t, a.heads});
    out({"dk", op.dk}, {a.b, a.keys, a.width});
    bf16_tolerance = 2e-2;  // a device may round the gradients of products
  }
  void expect(Values& v) override {
    const Numbers all = scores(v), &selected = v["selected"], &dscores = v["dscores"];
    Numbers of_keys(all.size());
    for (std::size_t i = 0; i < dscores.size(); ++i) {
      const std::size_t columns = dscores.size() / static_cast<std::size_t>(a.t), t = i / columns;
      const double key = selected.empty() ? static_cast<double>(i % columns) : selected[i];
      const std::size_t at_key = t * static_cast<std::size_t>(a.keys) + static_cast<std::size_t>(std::max(key, 0.0));
      if (key >= 0 && all[at_key] != ref::hidden_score) of_keys[at_key] = dscores[i];
    }
    const ref::IndexerGradients want = ref::index_scores_backward(reference(v), of_keys);
    v["dq"] = want.dq;
    v["dweights"] = want.dweights;
    v["dk"] = want.dk;
  }
};

// Attention of grouped heads over s tokens, to all keys (n = 0) or to every third key from n * 3
// positions back on, and to the query's own.
struct AttentionKeySums : OperationCase<ops::AttentionKeySums> {
  Index B, S, H, K, hd, n;
  float softcap;
  AttentionKeySums(Index sequences, Index tokens, Index heads, Index kv_heads, Index width, Index selected, float cap)
      : B(sequences), S(tokens), H(heads), K(kv_heads), hd(width), n(selected), softcap(cap) {
    op.desc.scale = static_cast<float>(scale());
    op.desc.softcap = softcap;
    note = fmt::format("{} heads, {} of keys, cap {}", H, K, softcap);
    in({"q", op.q}, {B, S, H, hd});
    in({"k", op.k}, {B, S, K, hd});
    Numbers list;
    for (Index t = 0; t < B * S && n > 0; ++t) {
      Index count = 0;
      for (Index j = std::max<Index>(0, t % S - 3 * (n - 1)); j <= t % S; ++j)
        if ((t % S - j) % 3 == 0) list.push_back(static_cast<double>(j)), ++count;
      list.insert(list.end(), static_cast<std::size_t>(n - count), -1.0);
    }
    if (n > 0) in({"selected", op.desc.mask.selected}, {B, S, n}, list, DType::i32);
    Values& v = values();
    const Numbers no_values(static_cast<std::size_t>(B * S * K));
    in({"lse", op.lse}, {B, H, S},
       ref::attention(B, heads_of_q(v), heads_of_k(v), {no_values.data(), S, K, 0, K, 1}, scale(), softcap, sees(v))
           .lse,
       DType::f32);
    out({"sums", op.sums}, {B * S, n > 0 ? n : S}, DType::f32);
    tolerance = 2e-5;
  }
  double scale() const { return 1.5 / std::sqrt(static_cast<double>(hd)); }
  ref::HeadsOf heads_of_q(Values& v) const { return {v["q"].data(), S, H, 0, H, hd}; }
  ref::HeadsOf heads_of_k(Values& v) const { return {v["k"].data(), S, K, 0, K, hd}; }
  std::function<bool(Index, Index, Index)> sees(Values& v) const {
    return [this, &list = v["selected"]](Index b, Index i, Index j) {
      const auto row = list.begin() + (b * S + i) * n;
      return j <= i && (n == 0 || std::find(row, row + n, static_cast<double>(j)) != row + n);
    };
  }
  void expect(Values& v) override {
    const Numbers sums = ref::attention_key_sums(B, heads_of_q(v), heads_of_k(v), v["lse"], scale(), softcap, sees(v));
    v["sums"] = ref::selected_values(S, sums, v["selected"], 0);
  }
};

}  // namespace sy::numerics
