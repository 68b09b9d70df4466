// GEMMs of the device as problems of gemm.h: of one matrix, of experts, and of an FFN with its
// activation.
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/ffn.h"
#include "kernels/ops/grouped_gemm.h"

namespace sy::cpu {

namespace {

// The rows of an operand, gathered or not, from number `first` on, as a row-major matrix.
Matrix plain(const GatheredRows& x, Index first, Index columns) {
  if (!x.index) return {x.values, first * columns, columns, 1};
  Matrix m(x.values, x.first_column, x.values.dim(1), 1);
  m.row_index = x.index.i32() + first;
  return m;
}
Matrix transposed(Matrix m) {
  std::swap(m.row_stride, m.col_stride);
  std::swap(m.row_index, m.col_index);
  return m;
}

// make(expert, its first row, its number of rows) returns the GEMM of an expert. Experts without
// rows have none, unless of_all.
template <class Make>
void multiply_by_expert(const GroupOffsets& groups, const Make& make, bool of_all = false) {
  std::vector<Problem> problems;
  const std::int32_t* const begin = groups.host;
  for (Index e = 0; e + 1 < groups.offsets.dim(0); ++e)
    if (of_all || begin[e] < begin[e + 1]) problems.push_back(make(e, begin[e], begin[e + 1] - begin[e]));
  gemm_batch(problems);
}

// A weight [N, Q] or [E, N, Q] as a stack of right operands [k, n] of a GEMM: y = x w^T, or dx = dy
// w.
struct Operand {
  Operand(const Shape& weight, GemmPass p) : pass(p) {
    const int last = weight.size() - 1;
    stack = last == 2 ? weight[0] : 1;
    N = weight[last - 1];
    Q = weight[last];
    k = p == GemmPass::fprop ? Q : N;
    n = p == GemmPass::fprop ? N : Q;
  }
  Matrix matrix(ConstView weight, Index e) const {
    const Matrix m = plain(weight, e * N, Q);
    return pass == GemmPass::fprop ? transposed(m) : m;
  }
  const std::byte* packed(const Weight& weight, Index e) const {
    const PackedWeight& form = weight.packed(pass);
    return form ? form.elements.bytes() + e * packed_bytes(k, n, weight.values.dtype()) : nullptr;
  }
  GemmPass pass;
  Index stack, N, Q, k, n;
};

// c_e = a_e b_e. first: first row of the expert
Problem product_of(const GatheredRows& a, const Weight& weight, const Operand& b, Index e, Index first, Index count,
                   GemmOutput c) {
  return {.m = count,
          .n = b.n,
          .k = b.k,
          .a = plain(a, first, b.k),
          .b = b.matrix(weight.values, e),
          .c = c,
          .ldc = b.n,
          .accumulate = false,
          .b_packed = b.packed(weight, e)};
}
void multiply_by_stack(const GatheredRows& a, const Weight& weight, GemmPass pass, const GroupOffsets& groups, View c) {
  const Operand b(weight.values.shape(), pass);
  multiply_by_expert(groups, [&](Index e, Index first, Index count) {
    return product_of(a, weight, b, e, first, count, {c, first * b.n});
  });
}

}  // namespace

Index native_weight_bytes(const Shape& weight, DType dtype, GemmPass pass) {
  const Operand b(weight, pass);
  return b.stack * packed_bytes(b.k, b.n, dtype);
}

void execute(CpuDevice&, const ops::PackWeight& op) {
  const Operand b(op.weight.shape(), op.pass);
  for (Index e = 0; e < b.stack; ++e)
    pack_operand(b.k, b.n, b.matrix(op.weight, e), op.packed.bytes() + e * packed_bytes(b.k, b.n, op.weight.dtype()));
}

void execute(CpuDevice&, const ops::Gemm& op) {
  const Operand right(op.b.values.shape(), op.pass());
  const Matrix a = plain(op.a, 0, op.a.dim(1));
  const Problem problem{.m = op.c.dim(0),
                        .n = right.n,
                        .k = right.k,
                        .a = op.transpose_a ? transposed(a) : a,
                        .b = right.matrix(op.b.values, 0),
                        .c = op.c,
                        .ldc = right.n,
                        .accumulate = op.accumulate,
                        .b_packed = right.packed(op.b, 0),
                        .addend = op.addend.bytes()};
  gemm_batch({&problem, 1});
}

void execute(CpuDevice&, const ops::GroupedGemm& op) {
  multiply_by_stack(op.x, op.w, GemmPass::fprop, op.groups, op.y);
}

void execute(CpuDevice&, const ops::GroupedGemmDgrad& op) {
  multiply_by_stack(op.dy, op.w, GemmPass::dgrad, op.groups, op.dx);
}

void execute(CpuDevice&, const ops::GroupedGemmWgrad& op) {
  const Index n = op.dw.dim(1), q = op.dw.dim(2);
  multiply_by_expert(
      op.groups,
      [&](Index e, Index first, Index count) {
        return Problem{.m = n,
                       .n = q,
                       .k = count,
                       .a = transposed(plain(op.dy, first, n)),
                       .b = plain(op.x, first, q),
                       .c = {op.dw, e * n * q},
                       .ldc = q,
                       .accumulate = op.accumulate};
      },
      !op.accumulate);
}

// ---- GEMMs of an FFN, with the activation as their epilogue ----

namespace {

// Computes y from h for the rows of one expert; `first` is its first row.
void activate(const ops::FfnForward& op, Index first, const OutputBlock& h) {
  const Index f = op.y.dim(1);
  const ActivationKernels kernels = activation_kernels(op.activation);
  Results outputs(op.y, h.cols);
  for (Index i = 0; i < h.rows; ++i) {
    const Index r = first + h.row + i;
    const float* const in = h.values + i * h.stride;
    float* const out = outputs.begin(r * f + h.column);
    kernels.forward(op.activation, in, op.activation.gated ? in + h.projection_stride : nullptr, h.cols,
                    op.row_scale ? op.row_scale.f32()[r] : 1.0f, out);
  }
}

// Computes dh, y and the sums of a row's gradient with respect to its scale, [R, blocks], for the
// rows of one expert.
void activate_backward(const ops::FfnBackward& op, Index first, float* sums, const OutputBlock& da) {
  const bool gated = op.activation.gated;
  const Index f = op.y.dim(1), width = op.h.dim(1), blocks = ceil_div(f, epilogue_columns);
  const ActivationKernels kernels = activation_kernels(op.activation);
  Floats inputs(op.h, da.cols), linears(gated ? op.h : ConstView{}, da.cols);
  Results gradients(op.dh, da.cols), dlinears(op.dh, da.cols), outputs(op.y, da.cols);
  for (Index i = 0; i < da.rows; ++i) {
    const Index r = first + da.row + i, at = r * width + da.column;
    const float* const in = inputs.at(at);
    const float* const linear = linears.at(at + f);
    float* const out = gradients.begin(at);
    float* const dlinear = gated ? dlinears.begin(at + f) : nullptr;
    kernels.backward(op.activation, da.values + i * da.stride, in, linear, da.cols,
                     op.row_scale ? op.row_scale.f32()[r] : 1.0f, out, dlinear, outputs.begin(r * f + da.column),
                     sums + r * blocks + da.column / epilogue_columns);
  }
}

// GEMMs of an FFN: one for each expert, or one for a single matrix.
struct FfnProduct {
  FfnProduct(const GatheredRows& a, const Weight& w, GemmPass pass, const GroupOffsets& g)
      : whole{0, static_cast<std::int32_t>(a.rows())},
        offsets(view_of(static_cast<const std::int32_t*>(whole), {2})),
        groups(g.host ? g : GroupOffsets{offsets, whole}),
        b(w.values.shape(), pass) {}
  std::int32_t whole[2];
  ConstView offsets;
  GroupOffsets groups;
  Operand b;
};

}  // namespace

// A task computes the same columns of both projections of h, so that the activation can follow at
// once. Panels of B are counted from the first column of the first projection. If a projection is a
// whole number of panels, the packed weight serves both; otherwise B is packed again.
void execute(CpuDevice&, const ops::FfnForward& op) {
  const FfnProduct p(op.x, op.w, GemmPass::fprop, op.groups);
  const Index num_projections = op.activation.gated ? 2 : 1, f = op.y.dim(1);
  const bool whole = num_projections == 1 || f % panel_columns(op.y.dtype()) == 0;
  multiply_by_expert(p.groups, [&](Index e, Index first, Index count) {
    Problem h = product_of(op.x, op.w, p.b, e, first, count, {op.h, first * p.b.n});
    h.n = f;
    if (!whole) h.b_packed = nullptr;
    if (op.bias) h.bias = op.bias.bytes() + e * p.b.n * size_of(op.bias.dtype());
    h.num_projections = num_projections;
    h.epilogue = [&op, first](const OutputBlock& block) { activate(op, first, block); };
    return h;
  });
}

// The gradient with respect to y is only in a thread's memory. A row's gradient with respect to its
// scale is a sum over columns. Blocks of columns are summed as they are computed, and the block
// sums in order. So the result does not depend on the threads.
void execute(CpuDevice&, const ops::FfnBackward& op) {
  const FfnProduct p(op.dout, op.w, GemmPass::dgrad, op.groups);
  const Index rows = op.y.dim(0), f = op.y.dim(1), blocks = ceil_div(f, epilogue_columns);
  const auto sums = scratch<float>(rows * blocks);
  float* const sum = sums.get();
  multiply_by_expert(p.groups, [&](Index e, Index first, Index count) {
    Problem da = product_of(op.dout, op.w, p.b, e, first, count, GemmOutput(op.y.dtype()));
    da.epilogue = [&op, first, sum](const OutputBlock& block) { activate_backward(op, first, sum, block); };
    return da;
  });
  if (!op.drow_scale) return;
  for_chunks(rows, rows_per_chunk(blocks), [&](Index begin, Index end) {
    for (Index r = begin; r < end; ++r)
      op.drow_scale.f32()[r] = std::accumulate(&sums[r * blocks], &sums[r * blocks] + blocks, 0.0f);
  });
}

}  // namespace sy::cpu
