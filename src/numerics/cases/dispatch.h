// Cases of capacity, dispatch and permutation (op_case.h).
#pragma once

#include <optional>

#include "kernels/ops/capacity.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/permute.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

// Returns k distinct experts for each of t tokens. padded: every third token has experts -1.
inline Numbers random_experts(Index t, Index k, Index e, bool padded = false) {
  const RandomStream stream(3, "experts");
  Numbers experts;
  for (Index i = 0; i < t; ++i) {
    Numbers keys;
    for (Index j = 0; j < e; ++j) keys.push_back(stream.uniform(i * e + j) / static_cast<double>(1 + j));
    for (Index expert : ref::largest(keys, k))
      experts.push_back(padded && i % 3 == 1 ? -1.0 : static_cast<double>(expert));
  }
  return experts;
}

struct CapacityCase : OperationCase<ops::ApplyCapacity> {
  Index t, k;
  bool padded;
  CapacityCase(CapacityDesc d, Index g, Index t_, Index k_, Index e, bool padded_ = false)
      : t(t_), k(k_), padded(padded_) {
    op.desc = d;
    op.segments = g;
    op.num_experts = e;
    note = fmt::format("order {} capacity {} segments {}{}", static_cast<int>(d.order), d.capacity, g,
                       padded ? ", with padding" : "");
    in({"experts", op.experts}, {t, k}, random_experts(t, k, e, padded), DType::i32);
    Numbers weights = whole("weights", {t, k}, 0, 20);  // with many ties
    for (double& w : weights) w /= 20;
    in({"weights", op.weights}, {t, k}, weights, DType::f32);
    out({"dispatch_mask", op.dispatch_mask}, {t, k}, DType::i32);
    tolerance = 0;
  }
  void run(Device& b) override {
    ops::run(b, op);
    // The elements of padding are undefined.
    for (Index i = 1; padded && i < t; i += 3) ops::run(b, ops::Fill{.x = op.dispatch_mask.rows(i, 1), .value = 0});
  }
  void expect(Values& v) override {
    v["dispatch_mask"] = ref::apply_capacity(op.desc, op.segments, t, k, v["experts"], v["weights"]);
  }
};

// Returns the physical expert of each expert: reversed, and rotated by half of the experts.
inline Numbers some_order(Index e) {
  Numbers order;
  for (Index expert = 0; expert < e; ++expert) order.push_back(static_cast<double>((e - 1 - expert + e / 2) % e));
  return order;
}

// Assignments that are not dropped. `unmasked`: all, and the layout has no mask.
enum class Dispatched { some, all, none, unmasked };

struct DispatchLayoutCase : OperationCase<ops::DispatchLayout> {
  Index k, e;
  DispatchLayoutCase(ExpertPartition s, Index t, Index k_, Index e_, bool ordered,
                     Dispatched dispatched = Dispatched::some, bool counted_alone = false)
      : k(k_), e(e_) {
    op.partition = s;
    note = fmt::format("ep {}, etp {}{}", s.ep, s.etp, ordered ? ", another order" : "");
    if (ordered) in({"logical_to_physical", op.partition.logical_to_physical}, {e}, some_order(e), DType::i32);
    // Padding has no row in the table of physical experts.
    const bool all = dispatched == Dispatched::all || dispatched == Dispatched::unmasked;
    in({"experts", op.experts}, {t, k}, random_experts(t, k, e, ordered && all), DType::i32);
    if (dispatched != Dispatched::unmasked)
      in({"dispatch_mask", op.dispatch_mask}, {t, k},
         whole("dispatch_mask", {t, k}, all, dispatched == Dispatched::none ? 1 : 2), DType::i32);
    add_outputs(t, counted_alone);
  }
  // Physical experts [first, first + e) of more, on both sides; some assignments are dropped.
  struct Among {
    Index first;
  };
  DispatchLayoutCase(ExpertPartition s, Index t, Index k_, Index e_, Among among) : k(k_), e(e_) {
    op.partition = s;
    op.partition.first_expert = among.first;
    note = fmt::format("ep {}, etp {}, experts from {} on", s.ep, s.etp, among.first);
    Numbers physical_experts = random_experts(t, k, among.first + e + 3);
    for (std::size_t a = 0; a < physical_experts.size(); a += 5) physical_experts[a] = -1;
    in({"experts", op.experts}, {t, k}, physical_experts, DType::i32);
    add_outputs(t, false);
  }
  void add_outputs(Index t, bool counted_alone) {
    const Index ep = op.partition.ep, etp = op.partition.etp;
    const Shape copies = {t, std::min(k, ep) * etp};
    out({"physical_experts", op.physical_experts}, {t, k}, DType::i32);
    if (!counted_alone) {
      out({"tokens", op.tokens}, {copies.elements()}, DType::i32);
      out({"row_id_map", op.row_id_map}, copies, DType::i32);
    }
    out({"counts", op.counts}, {ep * etp, 1 + e / ep}, DType::i32);
    out({"tokens_per_expert", op.tokens_per_expert}, {e}, DType::i32);
    tolerance = 0;
  }
  void expect(Values& v) override {
    const ref::DispatchTables s =
        ref::dispatch_layout(op.partition, v["logical_to_physical"], k, e, v["experts"], v["dispatch_mask"]);
    v["physical_experts"] = s.physical_experts;
    if (op.tokens) v["tokens"] = s.tokens;
    if (op.row_id_map) v["row_id_map"] = s.row_id_map;
    v["counts"] = s.counts;
    v["tokens_per_expert"] = s.tokens_per_expert;
  }
};

// weighted: rows get weights, but no assignments
struct PermutationCase : OperationCase<ops::BuildPermutation> {
  Index k, local;
  // more: number of rows of the tables beyond R.
  // one: physical expert of all assignments that are not dropped; empty: random.
  PermutationCase(Index t, Index k_, Index e, Index first_expert, Index local_, Index more,
                  Dispatched dispatched = Dispatched::some, std::optional<Index> one = {}, bool weighted = false)
      : k(k_), local(local_) {
    op.first_expert = first_expert;
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
    in({"physical_experts", op.physical_experts}, {t, k}, physical_experts, DType::i32);
    in_if(weighted, {"weights", op.weights}, {t, k}, DType::f32);
    if (weighted)
      accumulate({"row_weights", op.row_weights}, {n}, DType::f32);
    else
      out({"assignments", op.assignments}, {n}, DType::i32);
    out({"tokens", op.tokens}, {n}, DType::i32);
    out({"row_id_map", op.row_id_map}, {t, k}, DType::i32);
    out({"offsets", op.offsets}, {local + 1}, DType::i32);
    tolerance = 0;
  }
  void expect(Values& v) override {
    const ref::PermutationTables s = ref::build_permutation(
        k, op.first_expert, local, static_cast<Index>(v["tokens"].size()), v["physical_experts"]);
    if (op.assignments) v["assignments"] = s.assignments;
    for (std::size_t row = 0; op.weights && row < s.assignments.size(); ++row)
      if (s.assignments[row] >= 0) v["row_weights"][row] = v["weights"][static_cast<std::size_t>(s.assignments[row])];
    v["tokens"] = s.tokens;
    v["row_id_map"] = s.row_id_map;
    v["offsets"] = s.offsets;
  }
};

// The rows have d columns, `before` and `after` further ones.
struct PermuteRows : OperationCase<ops::Permute> {
  Index d, columns;
  PermuteRows(Index n, Rows s, Index before = 0, Index after = 0) : d(s.d), columns(before + d + after) {
    op.first_column = before;
    note = fmt::format("{} columns before", before);
    in({"x", op.x}, {n, columns});
    in({"index", op.index}, {s.t}, whole("index", {s.t}, -1, n), DType::i32);
    out({"y", op.y}, {s.t, d});
    tolerance = 0;
  }
  void expect(Values& v) override {
    const Numbers rows = ref::permute(columns, v["x"], v["index"]);
    for (std::size_t i = 0; i < v["y"].size(); ++i) v["y"][i] = rows[i / d * columns + op.first_column + i % d];
  }
};

// Rows of integers: the bits are copied, including those of -1.
struct PermuteIntegers : OperationCase<ops::Permute> {
  Index d;
  PermuteIntegers(Index n, Rows s) : d(s.d) {
    in({"x", op.x}, {n, d}, whole("x", {n, d}, -1, 1 << 20), DType::i32);
    in({"index", op.index}, {s.t}, whole("index", {s.t}, -1, n), DType::i32);
    out({"y", op.y}, {s.t, d}, DType::i32);
    tolerance = 0;
  }
  void expect(Values& v) override { v["y"] = ref::permute(d, v["x"], v["index"]); }
};

// Rows of messages: UnpackTokens and Permute read the rows that PackTokens writes.
struct TokenMessages : OpCase {
  Index t, n, k, d;
  bool weighted;  // UnpackTokens also reads the weights
  TokenMessages(Index tokens, Rows s, Index k_, bool weighted_)
      : t(tokens), n(s.t), k(k_), d(s.d), weighted(weighted_) {
    const TokenRow row{k, d, compute};
    in("physical_experts", {t, k}, whole("physical_experts", {t, k}, -1, 1 << 20), DType::i32);
    in("weights", {t, k}, DType::f32);
    in("x", {t, d});
    in("index", {n}, whole("index", {n}, 0, t), DType::i32);
    Numbers identity(static_cast<std::size_t>(n));
    std::iota(identity.begin(), identity.end(), 0.0);
    in("identity", {n}, identity, DType::i32);
    in_out("message", {n, row.columns()}, compute);
    out("experts", {n, k}, DType::i32);
    if (weighted) out("row_weights", {n, k}, DType::f32);
    out("y", {n, d});
    tolerance = 0;
  }
  void run(Device& b) override {
    const View message = at("message");
    ops::run(b, ops::PackTokens{.physical_experts = at("physical_experts"),
                                .weights = at("weights"),
                                .x = at("x"),
                                .index = at("index"),
                                .y = message});
    ops::run(b, ops::UnpackTokens{.x = message, .physical_experts = at("experts"), .weights = at("row_weights")});
    ops::run(b, ops::Permute{.x = message,
                             .index = at("identity"),
                             .first_column = TokenRow{k, d, message.dtype()}.first_value(),
                             .y = at("y")});
    ops::run(b, ops::Fill{.x = message, .value = 0});  // its metadata is no number of this type
  }
  void expect(Values& v) override {
    v["experts"] = ref::permute(k, v["physical_experts"], v["index"]);
    if (weighted) v["row_weights"] = ref::permute(k, v["weights"], v["index"]);
    v["y"] = ref::permute(d, v["x"], v["index"]);
    for (double& x : v["message"]) x = 0;
  }
};

// Initial value of the sums of y: zero, y itself, or another matrix.
enum class Begin { zero, itself, another };
struct UnpermuteRows : OperationCase<ops::Unpermute> {
  Index k, d;
  Begin begin;
  UnpermuteRows(Index rows, Index t, Index k_, Index d_, Begin at) : k(k_), d(d_), begin(at) {
    in({"x", op.x}, {rows, d});
    in({"row_id_map", op.row_id_map}, {t, k}, whole("row_id_map", {t, k}, -1, rows), DType::i32);
    in_if(begin == Begin::another, {"addend", op.addend}, {t, d});
    begin == Begin::itself ? accumulate({"y", [this](View y) { op.addend = op.y = y; }}, {t, d})
                           : out({"y", op.y}, {t, d});
  }
  void expect(Values& v) override {
    v["y"] = ref::unpermute(d, k, v["x"], v["row_id_map"], begin == Begin::another ? v["addend"] : v["y"]);
  }
};

}  // namespace sy::numerics
