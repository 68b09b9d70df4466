// Parts of heads: copied, summed, and multiplied by a matrix of each head's own.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"

namespace sy::cpu {
namespace {

// The first head's vector of a position, counted over all sequences.
const float* vector_of(const ConstHeads& x, Index position) {
  return reinterpret_cast<const float*>(x.data) + position / x.positions * x.sequence_stride +
         position % x.positions * x.token_stride;
}
float* vector_of(const Heads& x, Index position) {
  return const_cast<float*>(vector_of(ConstHeads(x), position));
}

}  // namespace

// An element of y costs 8 bytes, or 4 where the heads share one.
void CpuBackend::do_copy_heads(ConstHeads x, Heads y) {
  const Index step = x.heads == 1 ? 0 : x.head_stride;
  for_runs(y.sequences * y.positions, rows_per_run(y.heads * y.width), [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const float* const from = vector_of(x, t);
      float* const to = vector_of(y, t);
      for (Index h = 0; h < y.heads; ++h) std::copy_n(from + h * step, y.width, to + h * y.head_stride);
    }
  });
}

// An element of x costs 4 bytes and 1 FLOP.
void CpuBackend::do_sum_heads(ConstHeads x, Heads y) {
  for_runs(y.sequences * y.positions, rows_per_run(x.heads * x.width), [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const float* const from = vector_of(x, t);
      float* const to = vector_of(y, t);
      std::fill_n(to, y.width, 0.0f);
      for (Index h = 0; h < x.heads; ++h) {
        const float* const of_head = from + h * x.head_stride;
#pragma omp simd
        for (Index i = 0; i < y.width; ++i) to[i] += of_head[i];
      }
    }
  });
}

void CpuBackend::do_heads_gemm(WeightUse use, ConstHeads x, ConstView w, Heads y) {
  const Index n = w.dim(1), q = w.dim(2);
  std::vector<Problem> problems;
  for (Index h = 0; h < y.heads; ++h) {
    const float* const matrix = w.f32() + h * n * q;
    problems.push_back({.m = y.sequences * y.positions,
                        .n = y.width,
                        .k = x.width,
                        .a = {reinterpret_cast<const float*>(x.data) + h * x.head_stride, x.token_stride, 1},
                        .b = use == WeightUse::output ? Matrix{matrix, 1, q} : Matrix{matrix, q, 1},
                        .c = reinterpret_cast<float*>(y.data) + h * y.head_stride,
                        .ldc = y.token_stride,
                        .accumulate = false});
  }
  gemm_batch(problems);
}

}  // namespace sy::cpu
