#include "kernels/backend.h"

#include <algorithm>
#include <utility>

namespace sy {

namespace {

// Checks of the operands of one operation. A violation is a mistake in switchyard, never the
// user's. So it is an internal error that names the operation, the operand and both shapes.
class Operands {
 public:
  explicit Operands(const char* operation) : operation_(operation) {}

  // The operand must have this shape and type, and memory unless it has no elements.
  const Operands& is(const char* name, ConstView v, const Shape& shape, DType dtype = DType::f32) const {
    SY_ASSERT(v.shape() == shape && v.dtype() == dtype, "{}: {} is {} {}, not {} {}", operation_, name,
              info(v.dtype()).name, v.shape().str(), info(dtype).name, shape.str());
    present(name, v);
    return *this;
  }
  // The same, but the operand may be empty.
  const Operands& optional(const char* name, ConstView v, const Shape& shape, DType dtype = DType::f32) const {
    return v ? is(name, v, shape, dtype) : *this;
  }
  // The same for weights, activations or their gradients, which have the type of `like`.
  const Operands& same(const char* name, ConstView v, const Shape& shape, ConstView like) const {
    return is(name, v, shape, like.dtype());
  }
  // The operand is f32 or bf16 and has this number of dimensions. Shapes of other operands follow
  // from it.
  const Operands& real(const char* name, ConstView v, int dims) const {
    SY_ASSERT(v.dtype() == DType::f32 || v.dtype() == DType::bf16, "{}: {} is {}, not f32 or bf16", operation_, name,
              info(v.dtype()).name);
    return this->dims(name, v, dims, v.dtype());
  }
  // The operand has this type and this number of dimensions. Shapes of other operands follow from
  // it.
  const Operands& dims(const char* name, ConstView v, int dims, DType dtype = DType::f32) const {
    SY_ASSERT(v.shape().size() == dims && v.dtype() == dtype, "{}: {} is {} {}, not {} with {} dimensions", operation_,
              name, info(v.dtype()).name, v.shape().str(), info(dtype).name, dims);
    present(name, v);
    return *this;
  }

 private:
  void present(const char* name, ConstView v) const {
    SY_ASSERT(v || v.elements() == 0, "{}: {} {} has no memory", operation_, name, v.shape().str());
  }

  const char* operation_;
};

void check_segments(const char* operation, Index tokens, Index segments) {
  SY_ASSERT(segments > 0 && tokens % segments == 0, "{}: {} tokens in {} segments", operation, tokens, segments);
}

}  // namespace

// ---- memory ----

Tensor Backend::tensor(Shape shape, DType dtype) {
  Tensor t(allocate(shape.elements() * size_of(dtype)), shape, dtype);
  fill(t, 0);
  return t;
}

void Backend::to_device(const void* host, View x) {
  if (x.elements() == 0) return;
  SY_ASSERT(host && x, "to_device: {} has no memory", x.shape().str());
  do_to_device(host, x);
}

void Backend::to_host(ConstView x, void* host) {
  if (x.elements() == 0) return;
  SY_ASSERT(host && x, "to_host: {} has no memory", x.shape().str());
  do_to_host(x, host);
}

void Backend::begin_read(ConstView x) {
  SY_ASSERT(reading_ == 0 && x.size_bytes() <= read_limit, "begin_read of {} bytes, {} in flight", x.size_bytes(),
            reading_);
  reading_ = x.size_bytes();
  if (reading_ > 0) do_begin_read(x);
}

void Backend::end_read(void* host) {
  if (reading_ > 0) do_end_read(host, reading_);
  reading_ = 0;
}

void Backend::fill(View x, float value) {
  if (x.elements() == 0) return;
  SY_ASSERT(x, "fill: {} has no memory", x.shape().str());
  SY_ASSERT(x.dtype() == DType::f32 || value == 0, "fill: {} with {}", info(x.dtype()).name, value);
  do_fill(x, value);
}

void Backend::copy(ConstView x, View y) {
  SY_ASSERT(x.size_bytes() == y.size_bytes(), "copy: {} {} to {} {}", info(x.dtype()).name, x.shape().str(),
            info(y.dtype()).name, y.shape().str());
  if (x.elements() == 0) return;
  SY_ASSERT(x && y, "copy: {} has no memory", x.shape().str());
  do_copy(x, y);
}

void Backend::convert(ConstView x, View y) {
  const Operands check("convert");
  check.real("x", x, x.shape().size()).real("y", y, x.shape().size()).is("y", y, x.shape(), y.dtype());
  if (x.dtype() == y.dtype()) return copy(x, y);
  if (y.elements() > 0) do_convert(x, y);
}

void Backend::add(ConstView x, View y) {
  Operands("add").real("x", x, y.shape().size()).same("x", x, y.shape(), y).same("y", y, y.shape(), x);
  if (y.elements() > 0) do_add(x, y);
}

void Backend::scale(View x, float factor) {
  const Operands check("scale");
  check.real("x", x, x.shape().size());
  if (x.elements() > 0) do_scale(x, factor);
}

void Backend::sum_squares(ConstView x, View out) {
  Operands("sum_squares").is("x", x, x.shape()).is("out", out, {1}, DType::f64);
  if (x.elements() > 0) do_sum_squares(x, out);
}

// ---- products ----

void Backend::pack_weight(ConstView weight, GemmPass pass, View packed) {
  const Operands check("pack_weight");
  const Index bytes = packed_weight_bytes(weight.shape(), weight.dtype(), pass);
  check.real("weight", weight, weight.shape().size()).is("packed", packed, {bytes}, DType::u8);
  if (bytes > 0) do_pack_weight(weight, pass, packed);
}

void Backend::do_pack_weight(ConstView, GemmPass, View) {
  SY_ASSERT(false, "{} packs no weights", name());
}

namespace {

// Checks the packed weight of a GEMM, if there is one.
void check_packed(const Operands& check, const Backend& backend, const Weight& w, GemmPass pass) {
  const ConstView form = pass == GemmPass::fprop ? w.packed_fprop : w.packed_dgrad;
  const Index bytes = backend.packed_weight_bytes(w.values.shape(), w.values.dtype(), pass);
  check.optional("packed", form, {bytes}, DType::u8);
}

}  // namespace

void Backend::gemm(const Gemm& desc, ConstView a, const Weight& b, View c, ConstView addend) {
  const Operands check("gemm");
  const ConstView right = b.values;
  check.real("a", a, 2).real("b", right, 2).real("c", c, 2);
  const Index m = c.dim(0), n = c.dim(1), q = a.dim(desc.transpose_a ? 0 : 1);
  check.same("a", a, desc.transpose_a ? Shape{q, m} : Shape{m, q}, a)
      .same("b", right, desc.transpose_b ? Shape{n, q} : Shape{q, n}, a)
      .is("c", c, {m, n}, c.dtype() == DType::f32 ? DType::f32 : a.dtype())
      .optional("addend", addend, {m, n}, c.dtype());
  SY_ASSERT(!addend || !desc.accumulate, "gemm: accumulates and has an addend");
  check_packed(check, *this, b, desc.transpose_b ? GemmPass::fprop : GemmPass::dgrad);
  Gemm product = desc;
  if (addend && addend.bytes() == c.bytes()) {
    product.accumulate = true;
    addend = {};
  }
  if (c.elements() == 0 || (q == 0 && product.accumulate)) return;
  if (q == 0) return addend ? copy(addend, c) : fill(c, 0);
  do_gemm(product, a, b, addend, c);
}

namespace {

void check_groups(const Operands& check, const GroupOffsets& groups, Index experts, Index count) {
  check.is("offsets", groups.offsets, {experts + 1}, DType::i32);
  SY_ASSERT(groups.host && groups.host[0] == 0 && groups.host[experts] == count, "{} rows, {} of experts", count,
            groups.host ? groups.host[experts] : 0);
}

}  // namespace

namespace {

// Checks an operand of a GEMM: it must be [rows, width], of the type of `like`.
void check_gathered_rows(const Operands& check, const Backend& backend, const char* name, const GatheredRows& x,
                         Index rows, Index width, ConstView like) {
  check.real(name, x.values, 2).same(name, x.values, {x.values.dim(0), width}, like);
  SY_ASSERT(x.rows() == rows, "{} rows of {}, not {}", x.rows(), name, rows);
  SY_ASSERT(!x.index || backend.supports_gathered_rows(), "{}: {} does not support gathered rows", name,
            backend.name());
  check.optional("index", x.index, {rows}, DType::i32);
}

}  // namespace

void Backend::grouped_gemm(const GatheredRows& x, const Weight& w, const GroupOffsets& groups, View y) {
  const Operands check("grouped_gemm");
  const ConstView values = w.values;
  check.real("w", values, 3);
  const Index count = x.rows(), experts = values.dim(0), n = values.dim(1), q = values.dim(2);
  check_gathered_rows(check, *this, "x", x, count, q, values);
  check.same("y", y, {count, n}, values);
  check_groups(check, groups, experts, count);
  check_packed(check, *this, w, GemmPass::fprop);
  if (y.elements() == 0) return;
  if (q == 0) return fill(y, 0);
  do_grouped_gemm(x, w, groups, y);
}

void Backend::grouped_gemm_dgrad(const GatheredRows& dy, const Weight& w, const GroupOffsets& groups, View dx) {
  const Operands check("grouped_gemm_dgrad");
  const ConstView values = w.values;
  check.real("w", values, 3);
  const Index count = dy.rows(), experts = values.dim(0), n = values.dim(1), q = values.dim(2);
  check_gathered_rows(check, *this, "dy", dy, count, n, values);
  check.same("dx", dx, {count, q}, values);
  check_groups(check, groups, experts, count);
  check_packed(check, *this, w, GemmPass::dgrad);
  if (dx.elements() == 0) return;
  if (n == 0) return fill(dx, 0);
  do_grouped_gemm_dgrad(dy, w, groups, dx);
}

void Backend::grouped_gemm_wgrad(const GatheredRows& dy, const GatheredRows& x, const GroupOffsets& groups, View dw,
                                 bool accumulate) {
  const Operands check("grouped_gemm_wgrad");
  check.dims("dw", dw, 3);
  const Index count = x.rows(), experts = dw.dim(0), n = dw.dim(1), q = dw.dim(2);
  check_gathered_rows(check, *this, "dy", dy, count, n, x.values);
  check_gathered_rows(check, *this, "x", x, count, q, x.values);
  check_groups(check, groups, experts, count);
  if (dw.elements() == 0) return;
  if (count > 0) return do_grouped_gemm_wgrad(dy, x, groups, dw, accumulate);
  if (!accumulate) do_fill(dw, 0);
}

void Backend::grouped_bias_forward(ConstView bias, ConstView row_scale, const GroupOffsets& groups, Index first,
                                   View y) {
  const Operands check("grouped_bias_forward");
  check.real("y", y, 2).real("bias", bias, 2);
  const Index count = y.dim(0), experts = bias.dim(0), n = bias.dim(1);
  SY_ASSERT(first >= 0 && first + n <= y.dim(1), "grouped_bias_forward: columns {} + {} of {}", first, n, y.dim(1));
  check.same("bias", bias, bias.shape(), y).optional("row_scale", row_scale, {count});
  check_groups(check, groups, experts, count);
  if (count > 0 && n > 0) do_grouped_bias_forward(bias, row_scale, groups, first, y);
}

void Backend::grouped_bias_backward(ConstView dy, ConstView bias, ConstView row_scale, const GroupOffsets& groups,
                                    Index first, View dbias, View drow_scale) {
  const Operands check("grouped_bias_backward");
  check.real("dy", dy, 2).real("bias", bias, 2);
  const Index count = dy.dim(0), experts = bias.dim(0), n = bias.dim(1);
  SY_ASSERT(first >= 0 && first + n <= dy.dim(1), "grouped_bias_backward: columns {} + {} of {}", first, n, dy.dim(1));
  check.same("bias", bias, bias.shape(), dy)
      .optional("row_scale", row_scale, {count})
      .is("dbias", dbias, bias.shape())
      .optional("drow_scale", drow_scale, {count});
  check_groups(check, groups, experts, count);
  if (count > 0 && n > 0) do_grouped_bias_backward(dy, bias, row_scale, groups, first, dbias, drow_scale);
}

void Backend::bias_forward(ConstView bias, View y) {
  const Operands check("bias_forward");
  check.real("y", y, 2).same("bias", bias, {y.dim(1)}, y);
  if (y.elements() > 0) do_bias_forward(bias, y);
}

void Backend::bias_backward(ConstView dy, View dbias) {
  const Operands check("bias_backward");
  check.real("dy", dy, 2).is("dbias", dbias, {dy.dim(1)});
  if (dy.elements() > 0) do_bias_backward(dy, dbias);
}

// ---- norms ----

void Backend::norm_forward(const NormDesc& desc, ConstView x, ConstView weight, ConstView bias, View y, View moments) {
  const Operands check("norm_forward");
  SY_ASSERT(desc.kind != NormKind::none, "norm_forward: no norm to compute");
  check.real("x", x, 2);
  const Index t = x.dim(0), d = x.dim(1);
  check.same("weight", weight, {d}, x).same("y", y, {t, d}, x).is("moments", moments, {t, 2});
  if (bias) check.same("bias", bias, {d}, x);
  if (x.elements() == 0) return fill(moments, 0);
  do_norm_forward(desc, x, weight, bias, y, moments);
}

void Backend::norm_backward(const NormDesc& desc, ConstView dy, ConstView x, ConstView weight, ConstView moments,
                            View dx, View dweight, View dbias) {
  const Operands check("norm_backward");
  SY_ASSERT(desc.kind != NormKind::none, "norm_backward: no norm to compute");
  check.real("x", x, 2);
  const Index t = x.dim(0), d = x.dim(1);
  check.same("dy", dy, {t, d}, x)
      .same("weight", weight, {d}, x)
      .is("moments", moments, {t, 2})
      .same("dx", dx, {t, d}, x)
      .is("dweight", dweight, {d})
      .optional("dbias", dbias, {d});
  if (x.elements() > 0) do_norm_backward(desc, dy, x, weight, moments, dx, dweight, dbias);
}

// ---- FFN ----

void Backend::activation_forward(const FfnActivation& desc, ConstView h, ConstView row_scale, View y) {
  const Operands check("activation_forward");
  check.real("y", y, 2);
  const Index r = y.dim(0), f = y.dim(1);
  check.same("h", h, {r, desc.gated ? 2 * f : f}, y).optional("row_scale", row_scale, {r});
  if (y.elements() > 0) do_activation_forward(desc, h, row_scale, y);
}

void Backend::activation_backward(const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale, View dh,
                                  View drow_scale) {
  const Operands check("activation_backward");
  check.real("dy", dy, 2);
  const Index r = dy.dim(0), f = dy.dim(1);
  const Shape hidden = {r, desc.gated ? 2 * f : f};
  check.same("h", h, hidden, dy)
      .optional("row_scale", row_scale, {r})
      .same("dh", dh, hidden, dy)
      .optional("drow_scale", drow_scale, {r});
  if (dy.elements() == 0) {
    if (drow_scale) fill(drow_scale, 0);
    return;
  }
  do_activation_backward(desc, dy, h, row_scale, dh, drow_scale);
}

namespace {

// w: [E, out, in], or [out, in] if `groups` is empty. x: [R, D] and h: [R, F] have the type of w.
void check_ffn(const Operands& check, const Backend& backend, const Weight& w, GemmPass pass,
               const GroupOffsets& groups, Index count, Index out, Index in) {
  const ConstView values = w.values;
  const bool stack = groups.host != nullptr;
  check.real("w", values, stack ? 3 : 2);
  const Index experts = stack ? values.dim(0) : 1;
  check.same("w", values, stack ? Shape{experts, out, in} : Shape{out, in}, values);
  check_packed(check, backend, w, pass);
  if (stack) check_groups(check, groups, experts, count);
}

}  // namespace

void Backend::ffn_forward(const FfnActivation& desc, const GatheredRows& x, const Weight& w, ConstView bias,
                          const GroupOffsets& groups, ConstView row_scale, View h, View y) {
  const Operands check("ffn_forward");
  check.real("y", y, 2);
  const Index r = y.dim(0), f = y.dim(1), width = desc.gated ? 2 * f : f, d = x.values.dim(1);
  check_gathered_rows(check, *this, "x", x, r, d, y);
  check_ffn(check, *this, w, GemmPass::fprop, groups, r, width, d);
  check.same("w", w.values, w.values.shape(), y).same("h", h, {r, width}, y).optional("row_scale", row_scale, {r});
  if (bias) check.same("bias", bias, groups.host ? Shape{w.values.dim(0), width} : Shape{width}, y);
  if (y.elements() > 0) do_ffn_forward(desc, x, w, bias, groups, row_scale, h, y);
}

void Backend::do_ffn_forward(const FfnActivation& desc, const GatheredRows& x, const Weight& w, ConstView bias,
                             const GroupOffsets& groups, ConstView row_scale, View h, View y) {
  if (groups.host) {
    grouped_gemm(x, w, groups, h);
    if (bias) grouped_bias_forward(bias, {}, groups, 0, h);
  } else {
    gemm({.transpose_b = true}, x.values, w, h);
    if (bias) bias_forward(bias, h);
  }
  activation_forward(desc, h, row_scale, y);
}

void Backend::ffn_backward(const FfnActivation& desc, const GatheredRows& dout, const Weight& w,
                           const GroupOffsets& groups, ConstView h, ConstView row_scale, View dh, View drow_scale,
                           View y) {
  const Operands check("ffn_backward");
  check.real("y", y, 2);
  const Index r = y.dim(0), f = y.dim(1), width = desc.gated ? 2 * f : f, d = dout.values.dim(1);
  check_gathered_rows(check, *this, "dout", dout, r, d, y);
  check_ffn(check, *this, w, GemmPass::dgrad, groups, r, d, f);
  check.same("w", w.values, w.values.shape(), y)
      .same("h", h, {r, width}, y)
      .same("dh", dh, {r, width}, y)
      .optional("row_scale", row_scale, {r})
      .optional("drow_scale", drow_scale, {r});
  if (y.elements() > 0) return do_ffn_backward(desc, dout, w, groups, h, row_scale, dh, drow_scale, y);
  if (drow_scale) fill(drow_scale, 0);
}

// y holds its own gradient until it is computed again.
void Backend::do_ffn_backward(const FfnActivation& desc, const GatheredRows& dout, const Weight& w,
                              const GroupOffsets& groups, ConstView h, ConstView row_scale, View dh, View drow_scale,
                              View y) {
  if (groups.host)
    grouped_gemm_dgrad(dout, w, groups, y);
  else
    gemm({}, dout.values, w, y);
  activation_backward(desc, y, h, row_scale, dh, drow_scale);
  activation_forward(desc, h, row_scale, y);
}

// ---- positions ----

void Backend::rope(View x, Index heads, ConstView positions, ConstView table, bool inverse, RopePairs pairs) {
  const Operands check("rope");
  check.real("x", x, 3).dims("table", table, 3);
  check.is("positions", positions, {x.dim(0)}, DType::i32).is("table", table, {table.dim(0), table.dim(1), 2});
  SY_ASSERT(heads >= 0 && heads <= x.dim(1) && 2 * table.dim(1) <= x.dim(2), "rope: {} heads of x {} by table {}",
            heads, x.shape().str(), table.shape().str());
  if (x.elements() > 0 && heads > 0 && table.elements() > 0) do_rope(x, heads, positions, table, inverse, pairs);
}

namespace {

void check_qk_norm(const Operands& check, const QkNorm& desc, ConstView x, ConstView weight, ConstView inverse,
                   ConstView positions, ConstView table) {
  check.real("x", x, 3);
  const Index t = x.dim(0), heads = desc.q_heads + desc.k_heads, hd = x.dim(2);
  SY_ASSERT(heads <= x.dim(1), "qk_norm: {} heads of x {}", heads, x.shape().str());
  SY_ASSERT(desc.kind != NormKind::none, "qk_norm: no norm to compute");
  check.same("weight", weight, {desc.weights(), hd}, x).is("inverse", inverse, {t, heads});
  if (!table) return;
  check.dims("table", table, 3).is("positions", positions, {t}, DType::i32);
  SY_ASSERT(table.dim(2) == 2 && 2 * table.dim(1) <= hd, "qk_norm: x {} by table {}", x.shape().str(),
            table.shape().str());
}

}  // namespace

void Backend::qk_norm_forward(const QkNorm& desc, ConstView x, ConstView weight, ConstView positions, ConstView table,
                              View y, View inverse) {
  const Operands check("qk_norm_forward");
  check_qk_norm(check, desc, x, weight, inverse, positions, table);
  check.same("y", y, x.shape(), x);
  if (x.elements() > 0) do_qk_norm_forward(desc, x, weight, positions, table, y, inverse);
}

void Backend::qk_norm_backward(const QkNorm& desc, ConstView dy, ConstView x, ConstView weight, ConstView inverse,
                               ConstView positions, ConstView table, View dx, View dweight) {
  const Operands check("qk_norm_backward");
  check_qk_norm(check, desc, x, weight, inverse, positions, table);
  check.same("dy", dy, x.shape(), x).same("dx", dx, x.shape(), x).is("dweight", dweight, {desc.weights(), x.dim(2)});
  if (x.elements() > 0) do_qk_norm_backward(desc, dy, x, weight, inverse, positions, table, dx, dweight);
}

namespace {

// x: [T, row]; sums: [T, 2]
void check_whole_qk_norm(const Operands& check, const WholeQkNorm& desc, ConstView x, ConstView sums) {
  check.real("x", x, 2).is("sums", sums, {x.dim(0), 2});
  SY_ASSERT(desc.queries > 0 && desc.keys > 0 && desc.queries + desc.keys <= x.dim(1),
            "whole_qk_norm: {} queries and {} keys of x {}", desc.queries, desc.keys, x.shape().str());
  SY_ASSERT(desc.all_queries >= desc.queries && desc.all_keys >= desc.keys,
            "whole_qk_norm: {} of all {} queries, {} of all {} keys", desc.queries, desc.all_queries, desc.keys,
            desc.all_keys);
}

}  // namespace

void Backend::whole_qk_norm_sums(const WholeQkNorm& desc, ConstView x, ConstView y, View sums) {
  const Operands check("whole_qk_norm_sums");
  check_whole_qk_norm(check, desc, x, sums);
  check.same("y", y, x.shape(), x);
  if (x.elements() > 0) do_whole_qk_norm_sums(desc, x, y, sums);
}

void Backend::whole_qk_norm_forward(const WholeQkNorm& desc, ConstView x, ConstView weight, ConstView squares, View y) {
  const Operands check("whole_qk_norm_forward");
  check_whole_qk_norm(check, desc, x, squares);
  check.same("weight", weight, {desc.queries + desc.keys}, x).same("y", y, x.shape(), x);
  if (x.elements() > 0) do_whole_qk_norm_forward(desc, x, weight, squares, y);
}

void Backend::whole_qk_norm_backward(const WholeQkNorm& desc, ConstView dy, ConstView x, ConstView weight,
                                     ConstView squares, ConstView products, View dx, View dweight) {
  const Operands check("whole_qk_norm_backward");
  check_whole_qk_norm(check, desc, x, squares);
  const Shape normed{desc.queries + desc.keys};
  check.is("products", products, {x.dim(0), 2})
      .same("weight", weight, normed, x)
      .same("dy", dy, x.shape(), x)
      .same("dx", dx, x.shape(), x)
      .is("dweight", dweight, normed);
  if (x.elements() > 0) do_whole_qk_norm_backward(desc, dy, x, weight, squares, products, dx, dweight);
}

// ---- attention ----

namespace {

void check_heads(const char* operation, const char* name, ConstHeads x, const Shape& shape, ConstHeads like) {
  SY_ASSERT(x.shape() == shape && x.dtype == like.dtype, "{}: {} is {} {}, not {} {}", operation, name,
            info(x.dtype).name, x.shape().str(), info(like.dtype).name, shape.str());
  SY_ASSERT(x.data || x.elements() == 0, "{}: {} {} has no memory", operation, name, shape.str());
}
// The same for heads that are contiguous.
void check_whole_heads(const char* operation, const char* name, ConstHeads x, const Shape& shape, ConstHeads like) {
  check_heads(operation, name, x, shape, like);
  SY_ASSERT(x.is_contiguous(), "{}: {} are columns of heads of {}", operation, name, x.head_stride);
}

// Checks the operands that forward and backward share. Returns the shapes of out and lse.
std::pair<Shape, Shape> check_attention(const char* operation, const AttentionDesc& desc, ConstHeads q, ConstHeads k,
                                        ConstHeads v) {
  SY_ASSERT(q.dtype == DType::f32 || q.dtype == DType::bf16, "{}: q is {}, not f32 or bf16", operation,
            info(q.dtype).name);
  SY_ASSERT(k.heads > 0 && q.heads > 0 && q.heads % k.heads == 0 && q.width > 0 && v.width > 0,
            "{}: heads of q {} for k {}, v {}", operation, q.shape().str(), k.shape().str(), v.shape().str());
  const AttentionMask& mask = desc.mask;
  const bool last_sees = mask.window == 0 || mask.query_offset + q.positions - mask.window < k.positions;
  SY_ASSERT(mask.window >= 0 && mask.query_offset >= 0 && (q.positions == 0 || (k.positions > 0 && last_sees)),
            "{}: {} queries from {} on see {} keys, {} at a time", operation, q.positions, mask.query_offset,
            k.positions, mask.window);
  SY_ASSERT(mask.causal || !mask.document_start, "{}: documents without a causal mask", operation);
  const SparsePattern& sparse = mask.sparse;
  SY_ASSERT(!sparse || (mask.causal && (sparse.local > 0 || sparse.block > 0 || sparse.stride > 0)),
            "{}: a sparse pattern that is not causal, or in which a query does not see itself", operation);
  SY_ASSERT((sparse.stride == 0 || sparse.block == 0) && sparse.summary <= sparse.block,
            "{}: {} of blocks of {}, stride {}", operation, sparse.summary, sparse.block, sparse.stride);
  check_whole_heads(operation, "q", q, q.shape(), q);
  check_whole_heads(operation, "k", k, {q.sequences, k.positions, k.heads, q.width}, q);
  check_whole_heads(operation, "v", v, {q.sequences, k.positions, k.heads, v.width}, q);
  SY_ASSERT(mask.causal || !mask.query_offsets, "{}: query_offsets without a causal mask", operation);
  // Only the device knows the offsets of each sequence: a query may have the position of the last
  // key.
  const Index positions = mask.query_offsets ? k.positions : mask.query_offset + q.positions;
  SY_ASSERT(!desc.bias ||
                (mask.causal && desc.softcap == 0 && desc.bias.shape().size() == 2 && desc.bias.dim(1) >= positions),
            "{}: bias {} of {} positions, with cap {}", operation, desc.bias.shape().str(), positions, desc.softcap);
  Operands(operation)
      .optional("document_start", mask.document_start, {q.sequences, q.positions}, DType::i32)
      .optional("query_offsets", mask.query_offsets, {q.sequences}, DType::i32)
      .optional("bias", desc.bias, {q.heads, desc.bias ? desc.bias.dim(1) : 0})
      .optional("sinks", desc.sinks, {q.heads});
  return {{q.sequences, q.positions, q.heads, v.width}, {q.sequences, q.heads, q.positions}};
}

}  // namespace

void Backend::attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out,
                                View lse) {
  const auto [out_shape, lse_shape] = check_attention("attention_forward", desc, q, k, v);
  Operands("attention_forward").is("out", out, out_shape, q.dtype).is("lse", lse, lse_shape);
  if (out.elements() == 0) return;
  // Keys after the last query, as in a cache that is not full, are not read.
  if (desc.mask.causal && !desc.mask.query_offsets)
    k.positions = v.positions = std::min(k.positions, desc.mask.query_offset + q.positions);
  do_attention_forward(desc, q, k, v, out, lse);
}

void Backend::attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                                 ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv) {
  const auto [out_shape, lse_shape] = check_attention("attention_backward", desc, q, k, v);
  SY_ASSERT(!desc.mask.query_offsets, "attention_backward: query_offsets with a cache of {}", k.shape().str());
  Operands("attention_backward")
      .is("dout", dout, out_shape, q.dtype)
      .is("out", out, out_shape, q.dtype)
      .is("lse", lse, lse_shape);
  check_whole_heads("attention_backward", "dq", dq, q.shape(), q);
  check_whole_heads("attention_backward", "dk", dk, k.shape(), q);
  check_whole_heads("attention_backward", "dv", dv, v.shape(), q);
  if (k.elements() > 0) do_attention_backward(desc, dout, q, k, v, out, lse, dq, dk, dv);
}

void Backend::attention_backward_learned(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k,
                                         ConstHeads v, ConstView out, ConstView lse, View dbias, View dsinks) {
  const auto [out_shape, lse_shape] = check_attention("attention_backward_learned", desc, q, k, v);
  SY_ASSERT((desc.bias || !dbias) && (desc.sinks || !dsinks), "the gradient of an empty bias or of empty sinks");
  Operands("attention_backward_learned")
      .is("dout", dout, out_shape, q.dtype)
      .is("out", out, out_shape, q.dtype)
      .is("lse", lse, lse_shape)
      .optional("dbias", dbias, desc.bias ? desc.bias.shape() : Shape{})
      .optional("dsinks", dsinks, {q.heads});
  if (out.elements() > 0) do_attention_backward_learned(desc, dout, q, k, v, out, lse, dbias, dsinks);
}

void Backend::kv_cache_append(ConstHeads x, ConstView offsets, Heads y) {
  check_whole_heads("kv_cache_append", "x", x, x.shape(), y);
  check_whole_heads("kv_cache_append", "y", y, {x.sequences, y.positions, x.heads, x.width}, x);
  SY_ASSERT(x.positions <= y.positions, "kv_cache_append: {} to {}", x.shape().str(), y.shape().str());
  Operands("kv_cache_append").is("offsets", offsets, {x.sequences}, DType::i32);
  if (x.elements() > 0) do_kv_cache_append(x, offsets, y);
}

void Backend::broadcast_heads(ConstHeads x, Heads y) {
  check_heads("broadcast_heads", "x", x, {y.sequences, y.positions, x.heads == 1 ? 1 : y.heads, y.width}, y);
  check_heads("broadcast_heads", "y", y, y.shape(), x);
  if (y.elements() > 0) do_broadcast_heads(x, y);
}

void Backend::reduce_heads(ConstHeads x, Heads y) {
  check_heads("reduce_heads", "x", x, x.shape(), y);
  check_heads("reduce_heads", "y", y, {x.sequences, x.positions, 1, x.width}, x);
  if (y.elements() > 0) do_reduce_heads(x, y);
}

void Backend::batched_head_gemm(GemmPass pass, ConstHeads x, ConstView w, Heads y) {
  const Operands check("batched_head_gemm");
  check.real("w", w, 3);
  const Index n = w.dim(1), q = w.dim(2);
  const auto [in, out] = pass == GemmPass::fprop ? std::pair{q, n} : std::pair{n, q};
  check_heads("batched_head_gemm", "x", x, {x.sequences, x.positions, w.dim(0), in}, y);
  check_heads("batched_head_gemm", "y", y, {x.sequences, x.positions, w.dim(0), out}, x);
  SY_ASSERT(w.dtype() == x.dtype && in > 0, "batched_head_gemm: w is {} {}", info(w.dtype()).name, w.shape().str());
  for (const ConstHeads& heads : {x, ConstHeads(y)})
    SY_ASSERT(heads.sequences <= 1 || heads.sequence_stride == heads.positions * heads.token_stride,
              "batched_head_gemm: gaps between the sequences of {}", heads.shape().str());
  if (y.elements() > 0) do_batched_head_gemm(pass, x, w, y);
}

// ---- routing ----

namespace {

void check_route(const char* operation, const RouteDesc& desc, Index experts) {
  SY_ASSERT(desc.top_k >= 1 && desc.top_k <= experts, "{}: {} of {} experts", operation, desc.top_k, experts);
  SY_ASSERT(desc.groups >= 1 && experts % desc.groups == 0 && desc.topk_groups >= 1 &&
                desc.topk_groups <= desc.groups && desc.top_k <= experts / desc.groups * desc.topk_groups,
            "{}: {} of {} experts in {} of {} groups", operation, desc.top_k, experts, desc.topk_groups, desc.groups);
}

}  // namespace

void Backend::draw(const Draw& desc, ConstView index, View x) {
  const Operands check("draw");
  check.dims("x", x, 2).is("index", index, {x.dim(0)}, DType::i64);
  if (x.elements() > 0) do_draw(desc, index, x);
}

void Backend::jitter(const Draw& desc, ConstView index, ConstView x, bool accumulate, View y) {
  const Operands check("jitter");
  check.real("x", x, 2).is("index", index, {x.dim(0)}, DType::i64).same("y", y, x.shape(), x);
  if (x.elements() > 0) do_jitter(desc, index, x, accumulate, y);
}

void Backend::noisy_gating_forward(const Draw& desc, ConstView index, ConstView stddev, View x) {
  const Operands check("noisy_gating_forward");
  check.dims("x", x, 2).is("index", index, {x.dim(0)}, DType::i64).is("stddev", stddev, x.shape());
  if (x.elements() > 0) do_noisy_gating_forward(desc, index, stddev, x);
}

void Backend::noisy_gating_backward(const Draw& desc, ConstView index, ConstView dx, ConstView stddev, View dstddev) {
  const Operands check("noisy_gating_backward");
  check.real("dx", dx, 2).is("index", index, {dx.dim(0)}, DType::i64).is("stddev", stddev, dx.shape());
  check.same("dstddev", dstddev, dx.shape(), dx);
  if (dx.elements() > 0) do_noisy_gating_backward(desc, index, dx, stddev, dstddev);
}

void Backend::route_forward(const RouteDesc& desc, ConstView logits, ConstView bias, ConstView noise, View experts,
                            View weights, View counts, View probability, View z_squared) {
  const Operands check("route_forward");
  check.dims("logits", logits, 2).dims("counts", counts, 2, DType::i32);
  const Index t = logits.dim(0), e = logits.dim(1), segments = counts.dim(0);
  check_route("route_forward", desc, e);
  check_segments("route_forward", t, segments);
  check.optional("bias", bias, {e})
      .optional("noise", noise, {t, e})
      .is("experts", experts, {t, desc.top_k}, DType::i32)
      .is("weights", weights, {t, desc.top_k})
      .is("counts", counts, {segments, e}, DType::i32)
      .is("probability", probability, {segments, e})
      .is("z_squared", z_squared, {1}, DType::f64);
  if (t == 0) {
    for (View v : {counts, probability, z_squared}) fill(v, 0);
    return;
  }
  do_route_forward(desc, logits, bias, noise, experts, weights, counts, probability, z_squared);
}

void Backend::route_backward(const RouteDesc& desc, ConstView logits, ConstView experts, ConstView weights,
                             ConstView dweights, ConstView dprobability, float z_factor, View dlogits) {
  const Operands check("route_backward");
  check.dims("logits", logits, 2).dims("dprobability", dprobability, 2);
  const Index t = logits.dim(0), e = logits.dim(1);
  check_route("route_backward", desc, e);
  check_segments("route_backward", t, dprobability.dim(0));
  const Shape chosen = {t, desc.top_k};
  check.is("experts", experts, chosen, DType::i32)
      .is("weights", weights, chosen)
      .is("dweights", dweights, chosen)
      .is("dprobability", dprobability, {dprobability.dim(0), e})
      .is("dlogits", dlogits, {t, e}, dlogits.dtype())
      .real("dlogits", dlogits, 2);
  if (t > 0) do_route_backward(desc, logits, experts, weights, dweights, dprobability, z_factor, dlogits);
}

void Backend::apply_capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index segments,
                             Index num_experts, View dispatch_mask) {
  const Operands check("apply_capacity");
  check.dims("experts", experts, 2, DType::i32);
  check.is("weights", weights, experts.shape()).is("dispatch_mask", dispatch_mask, experts.shape(), DType::i32);
  check_segments("apply_capacity", experts.dim(0), segments);
  SY_ASSERT(desc.capacity >= 0 && num_experts >= experts.dim(1), "apply_capacity: {} of each of {} experts, {} chosen",
            desc.capacity, num_experts, experts.dim(1));
  if (experts.elements() > 0) do_apply_capacity(desc, experts, weights, segments, num_experts, dispatch_mask);
}

void Backend::dispatch_layout(const ExpertPartition& partition, ConstView experts, ConstView dispatch_mask,
                              View physical_experts, View tokens, View row_id_map, View counts,
                              View tokens_per_expert) {
  const Operands check("dispatch_layout");
  check.dims("experts", experts, 2, DType::i32).dims("tokens_per_expert", tokens_per_expert, 1, DType::i32);
  const Index t = experts.dim(0), e = tokens_per_expert.dim(0),
              most = partition.max_ep_ranks(experts.dim(1)) * partition.etp;
  SY_ASSERT(partition.ep > 0 && partition.etp > 0 && e % partition.ep == 0,
            "dispatch_layout: {} experts, ep = {}, etp = {}", e, partition.ep, partition.etp);
  SY_ASSERT(static_cast<bool>(tokens) == static_cast<bool>(row_id_map), "dispatch_layout: tokens or row_id_map alone");
  SY_ASSERT(t == 0 || (dispatch_mask ? partition.first_expert == 0
                                     : partition.first_expert >= 0 && !partition.logical_to_physical),
            "dispatch_layout: experts from {} on", partition.first_expert);
  check.optional("dispatch_mask", dispatch_mask, experts.shape(), DType::i32)
      .is("physical_experts", physical_experts, experts.shape(), DType::i32)
      .optional("tokens", tokens, {t * most}, DType::i32)
      .optional("row_id_map", row_id_map, {t, most}, DType::i32)
      .is("counts", counts, {partition.ranks() + e}, DType::i32)
      .optional("logical_to_physical", partition.logical_to_physical, tokens_per_expert.shape(), DType::i32);
  SY_ASSERT(t * most <= INT32_MAX, "dispatch_layout: {} rows, numbered with 31 bits", t * most);
  if (experts.elements() == 0) {
    fill(counts, 0);
    return fill(tokens_per_expert, 0);
  }
  do_dispatch_layout(partition, experts, dispatch_mask, physical_experts, tokens, row_id_map, counts,
                     tokens_per_expert);
}

void Backend::build_permutation(ConstView physical_experts, Index first_expert, View assignments, View tokens,
                                View row_id_map, View offsets) {
  const Operands check("build_permutation");
  check.dims("physical_experts", physical_experts, 2, DType::i32)
      .dims("assignments", assignments, 1, DType::i32)
      .dims("offsets", offsets, 1, DType::i32)
      .is("tokens", tokens, assignments.shape(), DType::i32)
      .is("row_id_map", row_id_map, physical_experts.shape(), DType::i32);
  SY_ASSERT(first_expert >= 0 && offsets.dim(0) > 0 && assignments.dim(0) <= physical_experts.elements() &&
                physical_experts.elements() <= INT32_MAX,
            "build_permutation: {} rows for {} physical experts from {} on, of {} assignments", assignments.dim(0),
            offsets.dim(0) - 1, first_expert, physical_experts.elements());
  if (physical_experts.elements() == 0) return fill(offsets, 0);
  do_build_permutation(physical_experts, first_expert, assignments, tokens, row_id_map, offsets);
}

void Backend::load_balancing_loss(const LoadBalancingDesc& desc, ConstView counts, ConstView scope_counts,
                                  ConstView probability, ConstView tokens_per_expert, ConstView z_squared,
                                  View dprobability, View sums) {
  const Operands check("load_balancing_loss");
  check.dims("counts", counts, 3, DType::i32).dims("scope_counts", scope_counts, 4, DType::i32);
  const Index l = counts.dim(0), g = counts.dim(1), e = counts.dim(2), p = scope_counts.dim(0), n = p * g;
  SY_ASSERT(desc.per_scope > 0 && n > 0 && n % desc.per_scope == 0, "load_balancing_loss: {} segments in scopes of {}",
            n, desc.per_scope);
  check.is("scope_counts", scope_counts, {p, l, g, e}, DType::i32)
      .is("probability", probability, {l, g, e})
      .is("tokens_per_expert", tokens_per_expert, {l, e}, DType::i32)
      .is("z_squared", z_squared, {l}, DType::f64)
      .is("dprobability", dprobability, {l, g, e})
      .optional("sums", sums, {l, RouterSums{e}.size()}, DType::f64);
  if (counts.elements() > 0)
    do_load_balancing_loss(desc, counts, scope_counts, probability, tokens_per_expert, z_squared, dprobability, sums);
}

void Backend::permute(ConstView x, ConstView index, View y) {
  const Operands check("permute");
  // Elements are copied as f32, whatever their type.
  if (x.dtype() == DType::i32 && y.dtype() == DType::i32)
    return permute({x.bytes(), x.shape(), DType::f32}, index, {y.bytes(), y.shape(), DType::f32});
  check.real("x", x, 2).real("y", y, 2);
  check.is("index", index, {y.dim(0)}, DType::i32).same("y", y, {y.dim(0), x.dim(1)}, x);
  if (y.elements() > 0) do_permute(x, index, y);
}

void Backend::unpermute(ConstView x, ConstView row_id_map, ConstView addend, View y) {
  const Operands check("unpermute");
  check.real("x", x, 2).dims("row_id_map", row_id_map, 2, DType::i32);
  check.same("y", y, {row_id_map.dim(0), x.dim(1)}, x).optional("addend", addend, y.shape(), x.dtype());
  if (y.elements() > 0) do_unpermute(x, row_id_map, addend, y);
}

// ---- embedding and loss ----

void Backend::embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y) {
  const Operands check("embedding_forward");
  check.dims("ids", ids, 1, DType::i32).real("table", table, 2).same("y", y, {ids.dim(0), table.dim(1)}, table);
  if (y.elements() > 0) do_embedding_forward(ids, table, vocab_begin, y);
}

void Backend::embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable) {
  const Operands check("embedding_backward");
  check.dims("ids", ids, 1, DType::i32).dims("dtable", dtable, 2).real("dy", dy, 2);
  check.is("dy", dy, {ids.dim(0), dtable.dim(1)}, dy.dtype());
  if (dy.elements() > 0 && dtable.elements() > 0) do_embedding_backward(ids, dy, vocab_begin, dtable);
}

void Backend::cross_entropy_forward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, View partial) {
  const Operands check("cross_entropy_forward");
  check.dims("logits", logits, 2);
  check.is("targets", targets, {logits.dim(0)}, DType::i32).is("partial", partial, {logits.dim(0), 3});
  if (partial.elements() > 0) do_cross_entropy_forward(desc, logits, targets, partial);
}

void Backend::cross_entropy_loss(ConstView partials, ConstView targets, View lse, View loss) {
  const Operands check("cross_entropy_loss");
  check.dims("partials", partials, 3);
  const Index t = partials.dim(1);
  check.is("partials", partials, {partials.dim(0), t, 3})
      .is("targets", targets, {t}, DType::i32)
      .is("lse", lse, {t})
      .is("loss", loss, {t});
  SY_ASSERT(partials.dim(0) > 0, "cross_entropy_loss: partials {} of no shard", partials.shape().str());
  if (t > 0) do_cross_entropy_loss(partials, targets, lse, loss);
}

void Backend::loss_sums(ConstView losses, ConstView lse, ConstView targets, View sums) {
  const Operands check("loss_sums");
  check.dims("losses", losses, 1).is("lse", lse, losses.shape()).is("targets", targets, losses.shape(), DType::i32);
  check.is("sums", sums, {2}, DType::f64);
  if (losses.elements() > 0) do_loss_sums(losses, lse, targets, sums);
}

void Backend::cross_entropy_backward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, ConstView lse,
                                     ConstView total, View dlogits) {
  const Operands check("cross_entropy_backward");
  check.dims("logits", logits, 2).real("dlogits", dlogits, 2);
  check.is("targets", targets, {logits.dim(0)}, DType::i32).is("lse", lse, {logits.dim(0)});
  check.is("total", total, {1}, DType::f64).is("dlogits", dlogits, logits.shape(), dlogits.dtype());
  if (logits.elements() > 0) do_cross_entropy_backward(desc, logits, targets, lse, total, dlogits);
}

// ---- optimizer ----

void Backend::clip_coefficient(ConstView squares, float clip, View coefficient) {
  Operands("clip_coefficient").is("squares", squares, {1}, DType::f64).is("coefficient", coefficient, {1});
  do_clip_coefficient(squares, clip, coefficient);
}

void Backend::adamw(const AdamW& desc, ConstView coefficient, ConstView step_scalars, ConstView g, View w, View m,
                    View v, View rounded) {
  const Operands check("adamw");
  check.dims("w", w, 1).is("coefficient", coefficient, {1}).is("step_scalars", step_scalars, {3});
  check.is("g", g, w.shape()).is("m", m, w.shape()).is("v", v, w.shape());
  check.optional("rounded", rounded, w.shape(), DType::bf16);
  if (w.elements() > 0) do_adamw(desc, coefficient, step_scalars, g, w, m, v, rounded);
}

// ---- the backends by name ----

std::unique_ptr<Backend> make_backend(std::string_view name, int local_rank) {
  if (name == "auto") return cuda_available() ? make_cuda(local_rank) : make_cpu();
  if (name == "cpu") return make_cpu();
  if (name == "cuda") return make_cuda(local_rank);
  throw NoBackend(name, "there is no such backend");
}

}  // namespace sy
