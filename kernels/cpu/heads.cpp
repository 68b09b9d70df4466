// Copies and sums of head columns, and batched head GEMMs.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/heads.h"

namespace sy::cpu {
namespace {

// Index of the first head's vector of a position. Positions count over all sequences.
Index vector_of(const ConstHeads& x, Index position) {
  return position / x.positions * x.sequence_stride + position % x.positions * x.token_stride;
}

}  // namespace

// An element of y costs 8 bytes, or 4 if x has one head.
void execute(CpuDevice&, const ops::BroadcastHeads& op) {
  const ConstHeads& x = op.x;
  const Heads& y = op.y;
  const Index step = x.heads == 1 ? 0 : x.head_stride;
  for_chunks(y.sequences * y.positions, rows_per_chunk(y.heads * y.width), [&](Index begin, Index end) {
    const ConstView from = x.span();
    const View to = y.span();
    for (Index t = begin; t < end; ++t)
      for (Index h = 0; h < y.heads; ++h)
        copy_elements(from, vector_of(x, t) + h * step, y.width, to, vector_of(y, t) + h * y.head_stride);
  });
}

// An element of x costs 4 bytes and 1 FLOP.
void execute(CpuDevice&, const ops::ReduceHeads& op) {
  const ConstHeads& x = op.x;
  const Heads& y = op.y;
  for_chunks(y.sequences * y.positions, rows_per_chunk(x.heads * x.width), [&](Index begin, Index end) {
    Floats vectors(x.span(), x.width);
    Results sums(y.span(), y.width);
    for (Index t = begin; t < end; ++t) {
      float* const to = sums.begin(vector_of(y, t));
      std::fill_n(to, y.width, 0.0f);
      for (Index h = 0; h < x.heads; ++h) {
        const float* const of_head = vectors.at(vector_of(x, t) + h * x.head_stride);
#pragma omp simd
        for (Index i = 0; i < y.width; ++i) to[i] += of_head[i];
      }
    }
  });
}

void execute(CpuDevice&, const ops::BatchedHeadGemm& op) {
  const ConstHeads& x = op.x;
  const ConstView w = op.w;
  const Heads& y = op.y;
  const Index n = w.dim(1), q = w.dim(2);
  std::vector<Problem> problems;
  const ConstView left = x.span();
  const View right = y.span();
  for (Index h = 0; h < y.heads; ++h)
    problems.push_back({.m = y.sequences * y.positions,
                        .n = y.width,
                        .k = x.width,
                        .a = {left, h * x.head_stride, x.token_stride, 1},
                        .b = op.pass == GemmPass::fprop ? Matrix{w, h * n * q, 1, q} : Matrix{w, h * n * q, q, 1},
                        .c = {right, h * y.head_stride},
                        .ldc = y.token_stride,
                        .accumulate = false});
  gemm_batch(problems);
}

}  // namespace sy::cpu
