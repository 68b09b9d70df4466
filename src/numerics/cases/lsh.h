// Cases of attention with locality-sensitive hashing (op_case.h).
#pragma once

#include "kernels/ops/lsh.h"
#include "src/numerics/op_case.h"

namespace sy::numerics {

// Attention of chunks. rounds = 0: in the order of positions, without a hash. If `padded`, the
// sequences have different lengths.
struct LshSizes {
  ref::LshShape s;
  Index rounds = 1;
  std::vector<Index> factors = {2};
  bool padded = false;
};

// x and v are columns of one operand, as in a model. The operations share some fields of `op`.
struct LshCase : OperationCase<ops::LshAttentionForward> {
  LshSizes a;
  explicit LshCase(LshSizes sizes) : a(std::move(sizes)) {
    const ref::LshShape& s = a.s;
    note = fmt::format("{} rounds of chunks of {}, {} before, {} after, {}", a.rounds, s.chunk, s.before, s.after,
                       s.causal ? "causal" : "both sides");
    if (s.hd == s.vd) {
      in({"xv", [this](View xv) { split(xv, op.x, op.v); }}, {s.B, s.S, 2 * s.H, s.hd});
    } else {
      in({"x", op.x}, {s.B, s.S, s.H, s.hd});
      in({"v", op.v}, {s.B, s.S, s.H, s.vd});
    }
    op.desc = {s.chunk, s.before, s.after, s.causal, static_cast<float>(s.scale), static_cast<float>(s.epsilon)};
    if (a.padded) {
      Numbers lengths;
      for (Index b = 0; b < s.B; ++b) lengths.push_back(static_cast<double>(std::max<Index>(1, s.S - 1 - 3 * b)));
      in({"lengths", op.lengths}, {s.B}, lengths, DType::i32);
    }
    if (a.rounds == 0) return;
    Index half = 0;
    for (const Index factor : a.factors) half += factor / 2;
    in("rotations", {s.H, s.hd, a.rounds, half}, DType::f32);
  }
  Index entries() const { return round_up(a.s.S, a.s.chunk); }
  bool is_fused() const { return a.s.hd == a.s.vd; }
  template <class H>
  void split(View xv, H& x, H& v) const {
    x = heads_of(xv, 0, a.s.H);
    v = heads_of(xv, a.s.H, a.s.H);
  }
  // Heads [first, first + H) of the operand that both share.
  Numbers half_of(const Numbers& both, Index first) const {
    Numbers out;
    const Index row = a.s.H * a.s.hd;
    for (Index t = 0; t < a.s.B * a.s.S; ++t)
      out.insert(out.end(), both.begin() + (2 * t + first) * row, both.begin() + (2 * t + first + 1) * row);
    return out;
  }
  Numbers x_of(Values& values) const { return is_fused() ? half_of(values["xv"], 0) : values["x"]; }
  Numbers v_of(Values& values) const { return is_fused() ? half_of(values["xv"], 1) : values["v"]; }
  Numbers order_of(Values& values) const {
    if (a.rounds == 0) return ref::lsh_positions(a.s, values["lengths"]);
    return ref::lsh_order(a.s, a.rounds, a.factors, entries(), x_of(values), values["rotations"], values["lengths"]);
  }
  // A sequence of at most one chunk is seen once, if it has no order.
  ref::LshShape shape() const {
    ref::LshShape s = a.s;
    if (a.rounds == 0 && s.S <= s.chunk) s.before = s.after = 0;
    return s;
  }
  void set_order() {
    if (a.rounds > 0) in({"order", op.order}, {a.s.B, a.s.H, a.rounds, entries()}, order_of(values()), DType::i32);
  }
  ref::LshAttention reference(Values& values) const {
    const Numbers& order = values["order"];
    return ref::lsh_attention(shape(), x_of(values), v_of(values), order.empty() ? order_of(values) : order);
  }
};

struct LshSort : LshCase {
  explicit LshSort(LshSizes sizes) : LshCase(std::move(sizes)) {
    out("order", {a.s.B, a.s.H, a.rounds, entries()}, DType::i32);
  }
  void run(Device& b) override {
    ops::run(b, ops::LshSort{.x = op.x,
                             .rotations = at("rotations"),
                             .factors = a.factors,
                             .lengths = op.lengths,
                             .order = at("order")});
  }
  void expect(Values& v) override { v["order"] = order_of(v); }
};

struct LshAttentionForward : LshCase {
  explicit LshAttentionForward(LshSizes sizes) : LshCase(std::move(sizes)) {
    set_order();
    out({"out", op.out}, {a.s.B, a.s.S, a.s.H, a.s.vd});
    out({"lse", op.lse}, {a.s.B, a.s.H, a.s.S}, DType::f32);
    tolerance = 1e-5;
  }
  void expect(Values& v) override {
    const ref::LshAttention want = reference(v);
    v["out"] = want.out;
    v["lse"] = want.lse;
  }
};

struct LshAttentionBackward : LshCase {
  ops::LshAttentionBackward backward{};
  explicit LshAttentionBackward(LshSizes sizes) : LshCase(std::move(sizes)) {
    set_order();
    const ref::LshAttention saved = reference(values());
    in({"out", backward.out}, {a.s.B, a.s.S, a.s.H, a.s.vd}, saved.out);
    in({"lse", backward.lse}, {a.s.B, a.s.H, a.s.S}, saved.lse, DType::f32);
    in({"dout", backward.dout}, {a.s.B, a.s.S, a.s.H, a.s.vd});
    if (is_fused()) {
      out_gradient({"xv", [this](View dxv) { split(dxv, backward.dx, backward.dv); }},
                   {a.s.B, a.s.S, 2 * a.s.H, a.s.hd});
    } else {
      out_gradient({"x", backward.dx}, {a.s.B, a.s.S, a.s.H, a.s.hd});
      out_gradient({"v", backward.dv}, {a.s.B, a.s.S, a.s.H, a.s.vd});
    }
    gradient_tolerance = compute == DType::bf16 ? 2e-2 : 2e-5;
  }
  void run(Device& b) override {
    backward.x = op.x;
    backward.v = op.v;
    backward.order = op.order;
    backward.lengths = op.lengths;
    backward.desc = op.desc;
    ops::run(b, backward);
  }
  double loss(Values& v) override { return ref::dot(v["dout"], reference(v).out); }
};

}  // namespace sy::numerics
