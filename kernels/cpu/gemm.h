// Matrix products of f32 or bf16, with sums in f32.
//
// An element of C is a sum over k in an order that depends on k alone: not on m, on n, on the element's place, on its
// tile, or on the number of threads. A row computed alone is therefore bitwise the row computed within a batch.
#pragma once

#include <span>

#include "kernels/bf16.h"
#include "kernels/tensor.h"

namespace sy::cpu {

// Element (i, j) is element i * row_stride + j * col_stride of data, which are f32 or bf16. Products are fast where one of the
// strides is 1. Where there are row_index or col_index, i is row_index[i] there, and j is col_index[j]: packing looks there. Only
// where the other stride is 1.
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

// Where a product begins: an element of f32 or bf16, to which its sums are rounded once.
struct Place {
  Place(View x, Index first = 0) : data(x.bytes() + first * size_of(x.dtype())), dtype(x.dtype()) {}
  explicit Place(DType type) : data(nullptr), dtype(type) {}
  template <class T>
  Place(T* x) : data(reinterpret_cast<std::byte*>(x)), dtype(DTypeOf<T>::value) {}
  std::byte* data;
  DType dtype;
};

// A part of a product's C that is complete, while a cache holds it: `rows` rows from number `row` on, `cols` columns from number
// `column` on. Row i of the part is at values + i * stride, and for a product of halves its columns of the second half are
// `half` behind. The values are as C's type holds them.
struct Finished {
  Index row, column, rows, cols;
  const float* values;
  Index stride, half;
};
// What is done with C as it is computed. Threads call it for parts that do not overlap and together are C. A part begins at a
// multiple of `columns` columns, and ends at one, or with C.
struct Epilogue {
  static constexpr Index columns = 64;
  virtual ~Epilogue() = default;
  virtual void finish(const Finished& part) const = 0;
};

// c[i * ldc + j] (+)= sum over l of a(i, l) b(l, j).  a: [m, k], b: [k, n], c: [m, n]. Any size may be 0; with k = 0, c
// becomes zero unless it accumulates. c must not overlap a or b. a and b have one type, c has it too or is f32. A product of f32
// is 2 m n k FLOPs and at least 4 (m k + k n + m n) bytes. b_packed: pack_operand of b, or none.
//
// from: what C is added to in place of itself, of c's type and `ldc`; or none. bias: [n] of c's type, is added to each row, or none.
// halves: 2 where b has 2 n columns, and C too; a task then computes the same columns of both, for the epilogue. c.data may be none
// where the epilogue alone reads the sums.
struct Problem {
  Index m, n, k;
  Matrix a, b;
  Place c;
  Index ldc;
  bool accumulate;
  const std::byte* b_packed = nullptr;
  const std::byte *from = nullptr, *bias = nullptr;
  Index halves = 1;
  const Epilogue* epilogue = nullptr;
};

// How bf16 is multiplied: in pairs, where the instruction set that this is compiled for has them, otherwise widened to f32. For
// tests: in pairs wherever this runs, slowly.
enum class Multiply { best, portable_pairs };

// How many columns of a right operand its panels hold: a packed one may be read from any multiple of them on.
Index panel_columns(DType dtype, Multiply how = Multiply::best);

// A right operand as the products' inner loop reads it, made once for many of them. b: [k, n]; packed: [packed_bytes].
Index packed_bytes(Index k, Index n, DType dtype, Multiply how = Multiply::best);
void pack_operand(Index k, Index n, const Matrix& b, std::byte* packed, Multiply how = Multiply::best);

// Many products at once, of one type, whose tiles the OpenMP threads share. The outputs must not overlap.
void gemm_batch(std::span<const Problem> problems, Multiply how = Multiply::best);

// One product on all OpenMP threads, or, inside a parallel region, on the calling thread.
void gemm(Index m, Index n, Index k, const Matrix& a, const Matrix& b, Place c, Index ldc, bool accumulate,
          Multiply how = Multiply::best);

// One product on the calling thread.
void gemm_serial(Index m, Index n, Index k, const Matrix& a, const Matrix& b, Place c, Index ldc, bool accumulate,
                 Multiply how = Multiply::best);

// Computes multiply-adds that touch registers alone and do not wait for one another, on the calling thread, and returns how many
// FLOPs that were: the roof of all products (fma.cpp).
double multiply_adds(Index rounds);

}  // namespace sy::cpu
