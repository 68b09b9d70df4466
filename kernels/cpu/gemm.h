// Single-precision matrix products.
//
// An element of C is a sum over k in an order that depends on k alone: not on m, n, the element's place, the
// tile it falls in or the number of threads. A row computed alone is therefore bitwise the row computed
// within a batch.
#pragma once

#include <span>

#include "kernels/tensor.h"

namespace sy::cpu {

// Element (i, j) is data[i * row_stride + j * col_stride]. Fast where one of the strides is 1.
struct Matrix {
  const float* data;
  Index row_stride, col_stride;
};

// c[i * ldc + j] (+)= sum over l of a(i, l) b(l, j).  a: [m, k], b: [k, n], c: [m, n]. Any size may be 0:
// with k = 0, c becomes zero unless it accumulates. c must not overlap a or b.
struct Problem {
  Index m, n, k;
  Matrix a, b;
  float* c;
  Index ldc;
  bool accumulate;
};

// Many products at once, all their tiles shared among the OpenMP threads. The outputs must not overlap.
void gemm_batch(std::span<const Problem> problems);

// One product on all OpenMP threads (inside a parallel region: on the calling one).
void gemm(Index m, Index n, Index k, Matrix a, Matrix b, float* c, Index ldc, bool accumulate);

// One product on the calling thread.
void gemm_serial(Index m, Index n, Index k, Matrix a, Matrix b, float* c, Index ldc, bool accumulate);

}  // namespace sy::cpu
