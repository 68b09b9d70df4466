// GEMMs of the backend as problems of gemm.h: of one matrix, of experts, and of an FFN with its
// activation.
#include <deque>
#include <numeric>
#include <vector>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace sy::cpu {

namespace {

// A row-major matrix with `columns` columns that begins with element `first` of x, and its
// transpose.
Matrix plain(ConstView x, Index first, Index columns) {
  return {x, first, columns, 1};
}
Matrix transposed(ConstView x, Index first, Index columns) {
  return {x, first, 1, columns};
}
// The same for the rows of an operand, gathered or not, from number `first` on.
Matrix plain(const RowsOf& x, Index first, Index columns) {
  Matrix m = plain(x.values, x.index ? 0 : first * columns, columns);
  if (x.index) m.row_index = x.index.i32() + first;
  return m;
}
Matrix transposed(const RowsOf& x, Index first, Index columns) {
  Matrix m = transposed(x.values, x.index ? 0 : first * columns, columns);
  if (x.index) m.col_index = x.index.i32() + first;
  return m;
}

// make(expert, its first row, its number of rows) returns the GEMM of an expert. Experts without
// rows have none, unless of_all.
template <class Make>
void multiply_by_expert(const ExpertRows& rows, const Make& make, bool of_all = false) {
  std::vector<Problem> problems;
  const std::int32_t* const begin = rows.host;
  for (Index e = 0; e + 1 < rows.offsets.dim(0); ++e)
    if (of_all || begin[e] < begin[e + 1]) problems.push_back(make(e, begin[e], begin[e + 1] - begin[e]));
  gemm_batch(problems);
}

// A weight [N, Q] or [E, N, Q] as a stack of right operands [k, n] of a GEMM: y = x w^T, or dx = dy
// w.
struct Operand {
  Operand(const Shape& weight, WeightUse u) : use(u) {
    const int last = weight.size() - 1;
    stack = last == 2 ? weight[0] : 1;
    N = weight[last - 1];
    Q = weight[last];
    k = u == WeightUse::output ? Q : N;
    n = u == WeightUse::output ? N : Q;
  }
  Matrix matrix(ConstView weight, Index e) const {
    return use == WeightUse::output ? transposed(weight, e * N * Q, Q) : plain(weight, e * N * Q, Q);
  }
  const std::byte* packed(const Weight& weight, Index e) const {
    const ConstView form = use == WeightUse::output ? weight.output : weight.input;
    return form ? form.bytes() + e * packed_bytes(k, n, weight.values.dtype()) : nullptr;
  }
  WeightUse use;
  Index stack, N, Q, k, n;
};

// c_e = a_e b_e
void multiply_by_stack(const RowsOf& a, const Weight& weight, WeightUse use, const ExpertRows& rows, View c) {
  const Operand b(weight.values.shape(), use);
  multiply_by_expert(rows, [&](Index e, Index first, Index count) {
    return Problem{.m = count,
                   .n = b.n,
                   .k = b.k,
                   .a = plain(a, first, b.k),
                   .b = b.matrix(weight.values, e),
                   .c = {c, first * b.n},
                   .ldc = b.n,
                   .accumulate = false,
                   .b_packed = b.packed(weight, e)};
  });
}

}  // namespace

Index CpuBackend::prepared_bytes(const Shape& weight, DType dtype, WeightUse use) const {
  const Operand b(weight, use);
  return b.stack * packed_bytes(b.k, b.n, dtype);
}

void CpuBackend::do_prepare(ConstView weight, WeightUse use, View prepared) {
  const Operand b(weight.shape(), use);
  for (Index e = 0; e < b.stack; ++e)
    pack_operand(b.k, b.n, b.matrix(weight, e), prepared.bytes() + e * packed_bytes(b.k, b.n, weight.dtype()));
}

void CpuBackend::do_gemm(const Gemm& desc, ConstView a, const Weight& b, ConstView from, View c) {
  const Operand right(b.values.shape(), desc.transpose_b ? WeightUse::output : WeightUse::input);
  const Problem problem{.m = c.dim(0),
                        .n = right.n,
                        .k = right.k,
                        .a = desc.transpose_a ? transposed(a, 0, a.dim(1)) : plain(a, 0, a.dim(1)),
                        .b = right.matrix(b.values, 0),
                        .c = c,
                        .ldc = right.n,
                        .accumulate = desc.accumulate,
                        .b_packed = right.packed(b, 0),
                        .from = from.bytes()};
  gemm_batch({&problem, 1});
}

void CpuBackend::do_grouped_gemm(const RowsOf& x, const Weight& w, const ExpertRows& rows, View y) {
  multiply_by_stack(x, w, WeightUse::output, rows, y);
}

void CpuBackend::do_grouped_gemm_input(const RowsOf& dy, const Weight& w, const ExpertRows& rows, View dx) {
  multiply_by_stack(dy, w, WeightUse::input, rows, dx);
}

void CpuBackend::do_grouped_gemm_weight(const RowsOf& dy, const RowsOf& x, const ExpertRows& rows, View dw,
                                        bool accumulate) {
  const Index n = dw.dim(1), q = dw.dim(2);
  multiply_by_expert(
      rows,
      [&](Index e, Index first, Index count) {
        return Problem{n, q, count, transposed(dy, first, n), plain(x, first, q), {dw, e * n * q}, q, accumulate};
      },
      !accumulate);
}

// ---- GEMMs of an FFN, with the activation as their epilogue ----

namespace {

// Computes y from h for the rows of one expert; `first` is its first row.
struct Activate final : Epilogue {
  Activate(const FfnActivation& desc, ConstView row_scale, Index first, View y)
      : desc(desc), row_scale(row_scale), first(first), y(y) {}
  void finish(const Finished& h) const override {
    const Index f = y.dim(1);
    const ActivationPart part = activation_part(desc);
    Results outputs(y, h.cols);
    for (Index i = 0; i < h.rows; ++i) {
      const Index r = first + h.row + i;
      const float* const in = h.values + i * h.stride;
      float* const out = outputs.begin(r * f + h.column);
      part.forward(desc, in, desc.gated ? in + h.half : nullptr, h.cols, row_scale ? row_scale.f32()[r] : 1.0f, out);
    }
  }
  FfnActivation desc;
  ConstView row_scale;
  Index first;
  View y;
};

// Computes dh, y and the sums of a row's gradient with respect to its scale, [R, parts], for the
// rows of one expert.
struct ActivateBackward final : Epilogue {
  ActivateBackward(const FfnActivation& desc, ConstView h, ConstView row_scale, Index first, View dh, View y,
                   float* sums)
      : desc(desc), h(h), row_scale(row_scale), first(first), dh(dh), y(y), sums(sums) {}
  void finish(const Finished& da) const override {
    const Index f = y.dim(1), width = h.dim(1), parts = ceil_div(f, columns);
    const ActivationPart part = activation_part(desc);
    Floats inputs(h, da.cols), linears(desc.gated ? h : ConstView{}, da.cols);
    Results gradients(dh, da.cols), dlinears(dh, da.cols), outputs(y, da.cols);
    for (Index i = 0; i < da.rows; ++i) {
      const Index r = first + da.row + i, at = r * width + da.column;
      const float* const in = inputs.at(at);
      const float* const linear = linears.at(at + f);
      float* const out = gradients.begin(at);
      float* const dlinear = desc.gated ? dlinears.begin(at + f) : nullptr;
      part.backward(desc, da.values + i * da.stride, in, linear, da.cols, row_scale ? row_scale.f32()[r] : 1.0f, out,
                    dlinear, outputs.begin(r * f + da.column), sums + r * parts + da.column / columns);
    }
  }
  FfnActivation desc;
  ConstView h, row_scale;
  Index first;
  View dh, y;
  float* sums;
};

// GEMMs of an FFN: one for each expert, or one for a single matrix.
struct FfnProduct {
  FfnProduct(const RowsOf& a, const Weight& w, WeightUse use, const ExpertRows& given)
      : whole{0, static_cast<std::int32_t>(a.rows())},
        offsets(view_of(static_cast<const std::int32_t*>(whole), {2})),
        rows(given.host ? given : ExpertRows{offsets, whole}),
        b(w.values.shape(), use) {}
  std::int32_t whole[2];
  ConstView offsets;
  ExpertRows rows;
  Operand b;
};

}  // namespace

// A task computes the same columns of both halves of h, so that the activation can follow at once.
// Panels of B are counted from the first column of the first half. If a half is a whole number of
// panels, the packed weight serves both halves; otherwise B is packed again.
void CpuBackend::do_ffn_forward(const FfnActivation& desc, const RowsOf& x, const Weight& w, ConstView bias,
                                const ExpertRows& given, ConstView row_scale, View h, View y) {
  const FfnProduct p(x, w, WeightUse::output, given);
  const Index halves = desc.gated ? 2 : 1, f = y.dim(1);
  const bool whole = halves == 1 || f % panel_columns(y.dtype()) == 0;
  std::deque<Activate> epilogues;
  multiply_by_expert(p.rows, [&](Index e, Index first, Index count) {
    return Problem{.m = count,
                   .n = f,
                   .k = p.b.k,
                   .a = plain(x, first, p.b.k),
                   .b = p.b.matrix(w.values, e),
                   .c = {h, first * p.b.n},
                   .ldc = p.b.n,
                   .accumulate = false,
                   .b_packed = whole ? p.b.packed(w, e) : nullptr,
                   .bias = bias ? bias.bytes() + e * p.b.n * size_of(bias.dtype()) : nullptr,
                   .halves = halves,
                   .epilogue = &epilogues.emplace_back(desc, row_scale, first, y)};
  });
}

// The gradient with respect to y is only in a thread's memory. A row's gradient with respect to its
// scale is a sum over columns. Blocks of columns are summed as they are computed, and the block
// sums in order. So the result does not depend on the threads.
void CpuBackend::do_ffn_backward(const FfnActivation& desc, const RowsOf& dout, const Weight& w,
                                 const ExpertRows& given, ConstView h, ConstView row_scale, View dh, View drow_scale,
                                 View y) {
  const FfnProduct p(dout, w, WeightUse::input, given);
  const Index rows = y.dim(0), f = y.dim(1), parts = ceil_div(f, Epilogue::columns);
  const auto sums = scratch<float>(rows * parts);
  std::deque<ActivateBackward> epilogues;
  multiply_by_expert(p.rows, [&](Index e, Index first, Index count) {
    return Problem{.m = count,
                   .n = f,
                   .k = p.b.k,
                   .a = plain(dout, first, p.b.k),
                   .b = p.b.matrix(w.values, e),
                   .c = Place(y.dtype()),
                   .ldc = f,
                   .accumulate = false,
                   .b_packed = p.b.packed(w, e),
                   .epilogue = &epilogues.emplace_back(desc, h, row_scale, first, dh, y, sums.get())};
  });
  if (!drow_scale) return;
  for_runs(rows, rows_per_run(parts), [&](Index begin, Index end) {
    for (Index r = begin; r < end; ++r)
      drow_scale.f32()[r] = std::accumulate(&sums[r * parts], &sums[r * parts] + parts, 0.0f);
  });
}

}  // namespace sy::cpu
