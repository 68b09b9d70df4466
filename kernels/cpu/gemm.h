// Single-precision matrix products.
//
// An element of C is a sum over k in an order that depends on k alone: not on m, on n, on the element's place, on its
// tile, or on the number of threads. A row computed alone is therefore bitwise the row computed within a batch.
#pragma once

#include <span>

#include "kernels/tensor.h"

namespace sy::cpu {

// Element (i, j) is data[i * row_stride + j * col_stride]. Products are fast where one of the strides is 1.
struct Matrix {
  const float* data;
  Index row_stride, col_stride;
};

// c[i * ldc + j] (+)= sum over l of a(i, l) b(l, j).  a: [m, k], b: [k, n], c: [m, n]. Any size may be 0; with k = 0, c
// becomes zero unless it accumulates. c must not overlap a or b. A product is 2 m n k FLOPs and at least
// 4 (m k + k n + m n) bytes. b_packed: pack_operand of b, or none.
struct Problem {
  Index m, n, k;
  Matrix a, b;
  float* c;
  Index ldc;
  bool accumulate;
  const float* b_packed = nullptr;
};

// A right operand as the products' inner loop reads it, made once for many of them. b: [k, n]; packed: [packed_floats].
Index packed_floats(Index k, Index n);
void pack_operand(Index k, Index n, Matrix b, float* packed);

// Many products at once, whose tiles the OpenMP threads share. The outputs must not overlap.
void gemm_batch(std::span<const Problem> problems);

// One product on all OpenMP threads, or, inside a parallel region, on the calling thread.
void gemm(Index m, Index n, Index k, Matrix a, Matrix b, float* c, Index ldc, bool accumulate);

// One product on the calling thread.
void gemm_serial(Index m, Index n, Index k, Matrix a, Matrix b, float* c, Index ldc, bool accumulate);

// Computes multiply-adds that touch registers alone and do not wait for one another, on the calling thread, and returns how many
// FLOPs that were: the roof of all products (fma.cpp).
double multiply_adds(Index rounds);

}  // namespace sy::cpu
