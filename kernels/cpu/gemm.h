// Matrix products of f32 or bf16, with sums in f32.
//
// An element of C is a sum over k in an order that depends on k alone. It does not depend on m, on
// n, on the element's position, on its tile, or on the number of threads. So a row computed alone
// is bitwise equal to the row computed within a batch.
#pragma once

#include <functional>
#include <span>

#include "kernels/bf16.h"
#include "kernels/tensor.h"

namespace sy::cpu {

// A strided matrix of f32 or bf16. Element (i, j) is element i * row_stride + j * col_stride of
// data. Products are fast if one of the strides is 1. With row_index, i is replaced by
// row_index[i]; with col_index, j by col_index[j]. Packing reads the index. An index requires that
// the other stride is 1.
struct Matrix {
  Matrix() = default;
  Matrix(ConstView x, Index first, Index rows, Index cols)
      : data(x.bytes() + first * size_of(x.dtype())), row_stride(rows), col_stride(cols), dtype(x.dtype()) {}
  template <class T>
  Matrix(const T* x, Index rows, Index cols)
      : data(reinterpret_cast<const std::byte*>(x)), row_stride(rows), col_stride(cols), dtype(DTypeOf<T>::value) {}
  Index at(Index i, Index j) const {
    return (row_index ? row_index[i] : i) * row_stride + (col_index ? col_index[j] : j) * col_stride;
  }
  const std::byte* data = nullptr;
  Index row_stride = 0, col_stride = 0;
  const std::int32_t *row_index = nullptr, *col_index = nullptr;
  DType dtype = DType::f32;
};

// First element of a product's result, f32 or bf16. Sums are rounded to it once.
struct GemmOutput {
  GemmOutput(View x, Index first = 0) : data(x.bytes() + first * size_of(x.dtype())), dtype(x.dtype()) {}
  explicit GemmOutput(DType type) : data(nullptr), dtype(type) {}
  template <class T>
  GemmOutput(T* x) : data(reinterpret_cast<std::byte*>(x)), dtype(DTypeOf<T>::value) {}
  std::byte* data;
  DType dtype;
};

// A completed block of a product's C, while a cache holds it. It has `rows` rows from `row` on and
// `cols` columns from `column` on. Row i is at values + i * stride. If Problem::num_projections is
// 2, the columns of the second projection are `projection_stride` elements later. The values are
// rounded to the type of C.
struct OutputBlock {
  Index row, column, rows, cols;
  const float* values;
  Index stride, projection_stride;
};
// Operation on C as it is computed. Threads call it for disjoint blocks that together cover C. A
// block begins at a multiple of `epilogue_columns`. It ends at such a multiple, or with C.
using Epilogue = std::function<void(const OutputBlock& block)>;
constexpr Index epilogue_columns = 64;

// A product: c[i * ldc + j] (+)= sum over l of a(i, l) b(l, j).
//
// a: [m, k], b: [k, n], c: [m, n]. Any size may be 0; with k = 0, c becomes zero unless it
// accumulates. Output c must not overlap a or b. Operands a and b have one type; c has the same
// type or f32. A product of f32 is 2 m n k FLOPs and at least 4 (m k + k n + m n) bytes.
//   b_packed  result of pack_operand for b, or nullptr
//   addend    replaces the old C, of c's type and `ldc`, or nullptr
//   bias      [n] of c's type, added to each row, or nullptr
//   num_projections  2 if b and C have 2 n columns; a task then computes the same columns of both,
//             for the epilogue
//   c.data    may be nullptr if only the epilogue reads the sums
struct Problem {
  Index m, n, k;
  Matrix a, b;
  GemmOutput c;
  Index ldc;
  bool accumulate;
  const std::byte* b_packed = nullptr;
  const std::byte *addend = nullptr, *bias = nullptr;
  Index num_projections = 1;
  Epilogue epilogue = {};
};

// Multiplication of bf16. best: in pairs if the compiled instruction set supports them, otherwise
// widened to f32. portable_pairs, for tests: in pairs on every machine, slowly.
enum class Multiply { best, portable_pairs };

// Number of columns of a right operand's panel. A packed operand can be read from any multiple of
// it on.
Index panel_columns(DType dtype, Multiply how = Multiply::best);

// Right operand in the layout that the inner loop reads, packed once for many products. b: [k, n];
// packed: [packed_bytes].
Index packed_bytes(Index k, Index n, DType dtype, Multiply how = Multiply::best);
void pack_operand(Index k, Index n, const Matrix& b, std::byte* packed, Multiply how = Multiply::best);

// Many products of one type, whose tiles the OpenMP threads share, or on the calling thread inside
// a parallel region. The outputs must not overlap.
void gemm_batch(std::span<const Problem> problems, Multiply how = Multiply::best);

// Computes independent multiply-adds in registers, on the calling thread. Returns the number of
// FLOPs. Their rate is the roof of all products (fma.cpp).
double multiply_adds(Index rounds);

}  // namespace sy::cpu
