// GEMM against double-precision sums,
// and its bitwise independence of neighbours, tiles and threads.
#include "kernels/cpu/processor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

namespace sy::cpu {
namespace {

// GEMM of the selected instruction set; ctest runs these tests with each set.
const auto gemm_batch = [](std::span<const Problem> problems, Multiply how = Multiply::best) {
  cpu_isa().kernels.gemm_batch(problems, how);
};
const auto packed_bytes = [](Index k, Index n, DType dtype, Multiply how) {
  return cpu_isa().kernels.packed_bytes(k, n, dtype, how);
};
const auto pack_operand = [](Index k, Index n, const Matrix& b, std::byte* packed, Multiply how) {
  cpu_isa().kernels.pack_operand(k, n, b, packed, how);
};

// One product.
void gemm(Index m, Index n, Index k, const Matrix& a, const Matrix& b, GemmOutput c, Index ldc, bool accumulate,
          Multiply how = Multiply::best) {
  const Problem problem{m, n, k, a, b, c, ldc, accumulate};
  gemm_batch({&problem, 1}, how);
}

struct ThreadCount {
  explicit ThreadCount(int n) : before(omp_get_max_threads()) { omp_set_num_threads(n); }
  ~ThreadCount() { omp_set_num_threads(before); }
  int before;
};

// One product on the calling thread.
void gemm_serial(Index m, Index n, Index k, const Matrix& a, const Matrix& b, GemmOutput c, Index ldc, bool accumulate,
                 Multiply how = Multiply::best) {
  const ThreadCount one(1);
  gemm(m, n, k, a, b, c, ldc, accumulate, how);
}

constexpr float untouched = 12345.0f;

std::vector<float> random_floats(Index count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> v(count);
  for (float& x : v) x = uniform(generator);
  return v;
}

enum class Layout { rows, columns, spaced };  // stride that is 1; spaced: neither

// A matrix of rows x cols in its own memory, with gaps after each row or column.
struct Stored {
  std::vector<float> memory;
  Matrix matrix;
  float at(Index i, Index j) const { return memory[i * matrix.row_stride + j * matrix.col_stride]; }
  const float* from(Index i, Index j) const { return &memory[i * matrix.row_stride + j * matrix.col_stride]; }
};

Stored random_matrix(Index rows, Index cols, Layout layout, unsigned seed) {
  Stored s;
  const Index row_stride = layout == Layout::rows ? cols + 3 : layout == Layout::columns ? 1 : 2 * cols + 1;
  const Index col_stride = layout == Layout::rows ? 1 : layout == Layout::columns ? rows + 5 : 2;
  s.memory = random_floats(rows * row_stride + cols * col_stride + 1, seed);
  s.matrix = {static_cast<const float*>(s.memory.data()), row_stride, col_stride};
  return s;
}

// Runs the GEMM and compares with double-precision sums.
// Memory between the rows of C and around C must stay unchanged.
void check(Index m, Index n, Index k, Layout a_layout, Layout b_layout, bool accumulate, bool serial) {
  SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << ", layouts " << int(a_layout) << ' '
                                  << int(b_layout) << (accumulate ? ", accumulating" : ""));
  const Stored a = random_matrix(m, k, a_layout, 1), b = random_matrix(k, n, b_layout, 2);
  constexpr Index margin = 64;
  const Index ldc = n + 7;
  std::vector<float> c(m * ldc + 2 * margin, untouched);
  const std::vector<float> before = random_floats(m * n, 3);
  float* c0 = c.data() + margin;
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j)
      c0[i * ldc + j] = accumulate ? before[i * n + j] : std::numeric_limits<float>::quiet_NaN();
  (serial ? gemm_serial : gemm)(m, n, k, a.matrix, b.matrix, c0, ldc, accumulate, Multiply::best);
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) {
      double want = accumulate ? before[i * n + j] : 0.0;
      for (Index l = 0; l < k; ++l) want += double(a.at(i, l)) * double(b.at(l, j));
      ASSERT_NEAR(c0[i * ldc + j], want, 1e-6 * std::sqrt(double(k) + 1) * 4) << "at " << i << ", " << j;
      c0[i * ldc + j] = untouched;
    }
  }
  EXPECT_TRUE(std::all_of(c.begin(), c.end(), [](float x) { return x == untouched; })) << "wrote outside C";
}

TEST(CpuGemm, MatchesDoubleSumsForEveryLayoutAndOddSize) {
  const Index sizes[][3] = {{1, 1, 1},   {2, 3, 5},     {13, 31, 17},  {14, 32, 16},  {15, 33, 33},
                            {29, 65, 7}, {64, 48, 100}, {97, 130, 61}, {257, 19, 40}, {5, 300, 23}};
  for (const auto& s : sizes)
    for (Layout a : {Layout::rows, Layout::columns, Layout::spaced})
      for (Layout b : {Layout::rows, Layout::columns, Layout::spaced})
        for (bool accumulate : {false, true}) check(s[0], s[1], s[2], a, b, accumulate, false);
}

TEST(CpuGemm, MatchesDoubleSumsOverSeveralBlocksOfK) {
  for (Index k : {383, 384, 385, 769, 1000})
    for (bool accumulate : {false, true}) {
      check(31, 70, k, Layout::rows, Layout::columns, accumulate, false);
      check(31, 70, k, Layout::columns, Layout::rows, accumulate, true);
    }
}

TEST(CpuGemm, MatchesDoubleSumsForEverySmallTile) {
  for (Index m = 1; m <= 30; ++m) check(m, 40, 18, Layout::rows, Layout::columns, true, true);
  for (Index n = 1; n <= 70; ++n) check(5, n, 18, Layout::columns, Layout::rows, false, true);
}

// One thread computes GEMMs of equal sizes in sequence. Each must use its own packed operands.
TEST(CpuGemm, PacksOperandsOfEachBatchProduct) {
  constexpr Index count = 3, m = 40, n = 24, k = 60;
  const ThreadCount one_thread(1);
  std::vector<Stored> left, right;
  std::vector<float> apart(count * m * n), together(apart.size());
  std::vector<Problem> problems;
  for (unsigned p = 0; p < count; ++p) {
    left.push_back(random_matrix(m, k, Layout::rows, 2 * p));
    right.push_back(random_matrix(k, n, Layout::columns, 2 * p + 1));
    gemm(m, n, k, left[p].matrix, right[p].matrix, &apart[p * m * n], n, false);
    problems.push_back({m, n, k, left[p].matrix, right[p].matrix, &together[p * m * n], n, false});
  }
  gemm_batch(problems);
  EXPECT_EQ(together, apart);
}

TEST(CpuGemm, AcceptsEmptySizes) {
  for (bool serial : {false, true}) {
    for (bool accumulate : {false, true}) {
      check(7, 9, 0, Layout::rows, Layout::rows, accumulate, serial);
      check(0, 9, 3, Layout::rows, Layout::rows, accumulate, serial);
      check(7, 0, 3, Layout::rows, Layout::rows, accumulate, serial);
      check(0, 0, 0, Layout::rows, Layout::rows, accumulate, serial);
    }
  }
  gemm_batch({});
}

TEST(CpuGemm, KeepsInfinityAndNanInTheirRow) {
  const Index m = 17, n = 35, k = 20;
  Stored a = random_matrix(m, k, Layout::rows, 4);
  const Stored b = random_matrix(k, n, Layout::columns, 5);
  a.memory[3 * a.matrix.row_stride + 2] = std::numeric_limits<float>::infinity();
  a.memory[16 * a.matrix.row_stride + 19] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> c(m * n);
  gemm(m, n, k, a.matrix, b.matrix, c.data(), n, false);
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) EXPECT_EQ(std::isfinite(c[i * n + j]), i != 3 && i != 16) << i << ", " << j;
}

bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

TEST(CpuGemm, ComputesSingleRowsAndColumnsBitwiseEqual) {
  const Index m = 131, n = 77;
  for (Index k : {5, 64, 300, 500}) {
    for (Layout layout : {Layout::rows, Layout::columns}) {
      const Stored a = random_matrix(m, k, layout, 6), b = random_matrix(k, n, layout, 7);
      std::vector<float> whole(m * n);
      gemm(m, n, k, a.matrix, b.matrix, whole.data(), n, false);
      for (Index i = 0; i < m; ++i) {
        std::vector<float> row(n);
        gemm(1, n, k, {a.from(i, 0), a.matrix.row_stride, a.matrix.col_stride}, b.matrix, row.data(), n, false);
        EXPECT_EQ(std::memcmp(row.data(), &whole[i * n], n * sizeof(float)), 0) << "row " << i << ", k " << k;
      }
      for (Index j = 0; j < n; ++j) {
        std::vector<float> column(m);
        gemm(m, 1, k, a.matrix, {b.from(0, j), b.matrix.row_stride, b.matrix.col_stride}, column.data(), 1, false);
        for (Index i = 0; i < m; ++i) EXPECT_EQ(column[i], whole[i * n + j]) << "column " << j << ", k " << k;
      }
    }
  }
}

TEST(CpuGemm, IsBitwiseEqualForAnyOperandLayout) {
  const Index m = 40, n = 50, k = 430;
  const Stored a = random_matrix(m, k, Layout::rows, 8), b = random_matrix(k, n, Layout::rows, 9);
  std::vector<float> a_turned(m * k), b_turned(k * n), straight(m * n), turned(m * n);
  for (Index l = 0; l < k; ++l) {
    for (Index i = 0; i < m; ++i) a_turned[l * m + i] = a.at(i, l);
    for (Index j = 0; j < n; ++j) b_turned[j * k + l] = b.at(l, j);
  }
  gemm(m, n, k, a.matrix, b.matrix, straight.data(), n, false);
  gemm(m, n, k, {a_turned.data(), 1, m}, {b_turned.data(), 1, k}, turned.data(), n, false);
  EXPECT_TRUE(same_bits(straight, turned));
}

TEST(CpuGemm, IsBitwiseEqualForAnyNumberOfThreads) {
  // Threads share the columns of the second size.
  const Index sizes[][3] = {{700, 500, 390}, {40, 100, 6000}};
  for (const auto& [m, n, k] : sizes) {
    const Stored a = random_matrix(m, k, Layout::rows, 10), b = random_matrix(k, n, Layout::columns, 11);
    std::vector<std::vector<float>> results;
    for (int threads : {1, 2, 3, 8}) {
      const ThreadCount count(threads);
      results.emplace_back(m * n);
      gemm(m, n, k, a.matrix, b.matrix, results.back().data(), n, false);
    }
    results.emplace_back(m * n);
    gemm_serial(m, n, k, a.matrix, b.matrix, results.back().data(), n, false);
    for (const auto& r : results) EXPECT_TRUE(same_bits(r, results[0])) << m << " x " << n << " x " << k;
  }
}

TEST(CpuGemm, ComputesABatchBitwiseLikeSingleProducts) {
  // Experts with many rows, one, and none.
  const Index n = 90, k = 70;
  const Index rows[] = {200, 0, 1, 33, 900};
  Index total = 0;
  for (Index r : rows) total += r;
  const std::vector<float> x = random_floats(total * k, 12), w = random_floats(std::ssize(rows) * n * k, 13);
  std::vector<float> together(total * n), alone(total * n);
  std::vector<Problem> problems;
  Index row = 0, expert = 0;
  for (Index r : rows) {
    const Matrix a{x.data() + row * k, k, 1}, b{w.data() + expert * n * k, 1, k};
    problems.push_back({r, n, k, a, b, together.data() + row * n, n, false});
    gemm_serial(r, n, k, a, b, alone.data() + row * n, n, false);
    row += r;
    ++expert;
  }
  for (int threads : {1, 2, 8}) {
    const ThreadCount count(threads);
    std::fill(together.begin(), together.end(), untouched);
    gemm_batch(problems);
    EXPECT_TRUE(same_bits(together, alone)) << threads << " threads";
  }
}

// ---- bf16: in the best way of the instruction set (at least widened to f32), and in pairs ----

constexpr Multiply both_ways[] = {Multiply::best, Multiply::portable_pairs};

// A bf16 matrix in its own memory, with gaps.
struct StoredBf16 {
  std::vector<Bf16> memory;
  Matrix matrix;
  StoredBf16(Index rows, Index cols, Layout layout, unsigned seed) {
    const Stored exact = random_matrix(rows, cols, layout, seed);
    memory.resize(exact.memory.size());
    std::copy(exact.memory.begin(), exact.memory.end(), memory.begin());
    matrix = {static_cast<const Bf16*>(memory.data()), exact.matrix.row_stride, exact.matrix.col_stride};
  }
  float at(Index i, Index j) const { return memory[i * matrix.row_stride + j * matrix.col_stride]; }
  Matrix from(Index i, Index j) const {
    return {&memory[i * matrix.row_stride + j * matrix.col_stride], matrix.row_stride, matrix.col_stride};
  }
};

// Runs the GEMM with C of type T, with gaps between its rows and around it, and compares.
template <class T>
void check_bf16(Index m, Index n, Index k, Layout a_layout, Layout b_layout, bool accumulate, bool packed,
                Multiply how) {
  SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << ", layouts " << int(a_layout) << ' '
                                  << int(b_layout) << (accumulate ? ", accumulating" : "") << (packed ? ", packed" : "")
                                  << " way " << int(how));
  const StoredBf16 a(m, k, a_layout, 1), b(k, n, b_layout, 2);
  constexpr Index margin = 64;
  const Index ldc = n + 7;
  constexpr float outside = 12352.0f;  // exact in bf16
  std::vector<T> c(m * ldc + 2 * margin);
  std::fill(c.begin(), c.end(), outside);
  std::vector<T> before(m * n);
  const std::vector<float> random = random_floats(m * n, 3);
  std::copy(random.begin(), random.end(), before.begin());
  T* c0 = c.data() + margin;
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j)
      c0[i * ldc + j] = accumulate ? float{before[i * n + j]} : std::numeric_limits<float>::quiet_NaN();
  std::vector<std::byte> form(packed ? packed_bytes(k, n, DType::bf16, how) + 64 : 0);
  if (packed) pack_operand(k, n, b.matrix, form.data(), how);
  const Problem problem{m, n, k, a.matrix, b.matrix, c0, ldc, accumulate, packed ? form.data() : nullptr};
  gemm_batch({&problem, 1}, how);
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      double want = accumulate ? before[i * n + j] : 0.0;
      for (Index l = 0; l < k; ++l) want += double(a.at(i, l)) * double(b.at(l, j));
      const double rounding = std::is_same_v<T, Bf16> ? 0x1p-8 * std::abs(want) : 0;
      ASSERT_NEAR(c0[i * ldc + j], want, rounding + 4e-6 * std::sqrt(double(k) + 1)) << "at " << i << ", " << j;
      c0[i * ldc + j] = outside;
    }
  EXPECT_TRUE(std::all_of(c.begin(), c.end(), [](float x) { return x == outside; })) << "wrote outside C";
}

TEST(CpuGemmBf16, MatchesDoubleSums) {
  const Index sizes[][3] = {{1, 1, 1},     {2, 3, 5},     {13, 31, 17},  {16, 32, 32},   {32, 32, 64}, {33, 33, 33},
                            {64, 48, 100}, {97, 130, 61}, {257, 19, 40}, {31, 70, 1100}, {7, 9, 0},    {0, 9, 3}};
  for (const Multiply how : both_ways)
    for (const auto& s : sizes)
      for (Layout a : {Layout::rows, Layout::columns, Layout::spaced})
        for (Layout b : {Layout::rows, Layout::columns})
          for (bool accumulate : {false, true})
            for (bool packed : {false, true}) {
              check_bf16<float>(s[0], s[1], s[2], a, b, accumulate, packed, how);
              check_bf16<Bf16>(s[0], s[1], s[2], a, b, accumulate, packed, how);
            }
}

TEST(CpuGemmBf16, IsBitwiseEqualForAnyRowsThreadsAndPacking) {
  const Index m = 131, n = 77;
  for (const Multiply how : both_ways)
    for (Index k : {5, 64, 700}) {
      const StoredBf16 a(m, k, Layout::rows, 6), b(k, n, Layout::columns, 7);
      std::vector<float> whole(m * n), other(m * n), row(n);
      std::vector<std::byte> form(packed_bytes(k, n, DType::bf16, how) + 64);
      pack_operand(k, n, b.matrix, form.data(), how);
      gemm_serial(m, n, k, a.matrix, b.matrix, whole.data(), n, false, how);
      for (const std::byte* packed :
           {static_cast<const std::byte*>(nullptr), static_cast<const std::byte*>(form.data())})
        for (int threads : {1, 3}) {
          const ThreadCount count(threads);
          const Problem problem{m, n, k, a.matrix, b.matrix, other.data(), n, false, packed};
          gemm_batch({&problem, 1}, how);
          EXPECT_TRUE(same_bits(whole, other)) << threads << " threads, k " << k << ", packed " << !!packed;
        }
      for (Index i = 0; i < m; ++i) {
        gemm(1, n, k, a.from(i, 0), b.matrix, row.data(), n, false, how);
        EXPECT_EQ(std::memcmp(row.data(), &whole[i * n], n * sizeof(float)), 0) << "row " << i << ", k " << k;
      }
    }
}

// Indexed rows or columns give the result of a matrix that stores them in this order. With one
// column or one row, both strides are 1.
TEST(CpuGemmBf16, ReadsIndexedRowsOrColumns) {
  constexpr Index there = 50;
  const auto index_of = [](Index n, Index step) {
    std::vector<std::int32_t> index(static_cast<std::size_t>(n));
    for (Index i = 0; i < n; ++i) index[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * step % there);
    return index;
  };
  const Index sizes[][3] = {{1, 1, 1}, {70, 1, 1}, {1, 40, 70}, {70, 40, 1}, {33, 65, 97}, {130, 3, 40}};
  for (const Multiply how : both_ways)
    for (const auto& [m, n, k] : sizes) {
      SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << " way " << int(how));
      const StoredBf16 x(there, std::max(k, m), Layout::rows, 8), w(there, std::max(k, n), Layout::rows, 9);
      const auto of_rows = index_of(m, 7), of_k = index_of(k, 11);
      std::vector<Bf16> rows(m * k), columns(k * m), right(k * n);
      const StoredBf16 b(k, n, Layout::columns, 10);
      std::vector<float> want(m * n), got(m * n);
      const auto same = [&](const Matrix& gathered, const Matrix& a, const Matrix& gathered_b, const Matrix& by_index) {
        gemm(m, n, k, gathered, gathered_b, want.data(), n, false, how);
        gemm(m, n, k, a, by_index, got.data(), n, false, how);
        EXPECT_TRUE(same_bits(want, got));
      };
      // Indexed rows of A, such as tokens.
      for (Index i = 0; i < m; ++i)
        for (Index l = 0; l < k; ++l) rows[i * k + l] = x.at(of_rows[i], l);
      Matrix a(x.memory.data(), x.matrix.row_stride, 1);
      a.row_index = of_rows.data();
      same({rows.data(), k, 1}, a, b.matrix, b.matrix);
      // Indexed columns of A and rows of B, as for a weight gradient.
      for (Index l = 0; l < k; ++l) {
        for (Index i = 0; i < m; ++i) columns[l * m + i] = x.at(of_k[l], i);
        for (Index j = 0; j < n; ++j) right[l * n + j] = w.at(of_k[l], j);
      }
      a = {x.memory.data(), 1, x.matrix.row_stride};
      a.col_index = of_k.data();
      Matrix by_index(w.memory.data(), w.matrix.row_stride, 1);
      by_index.row_index = of_k.data();
      same({columns.data(), 1, m}, a, {right.data(), n, 1}, by_index);
      // Rows of one element without gaps between rows.
      std::vector<Bf16> narrow(there);
      for (Index i = 0; i < there; ++i) narrow[i] = x.at(i, 0);
      if (k == 1) {
        a = {narrow.data(), 1, 1};
        a.row_index = of_rows.data();
        same({rows.data(), 1, 1}, a, b.matrix, b.matrix);
      }
    }
}

// Both ways multiply exactly: if the sums are exact in any order, the results are bitwise equal.
TEST(CpuGemmBf16, MultipliesWholeNumbersExactly) {
  const Index m = 45, n = 50, k = 300;
  std::vector<Bf16> a(m * k), b(k * n);
  for (Index i = 0; i < m * k; ++i) a[i] = static_cast<float>(i * 7 % 31 - 15);
  for (Index i = 0; i < k * n; ++i) b[i] = static_cast<float>(i * 11 % 29 - 14);
  for (const Multiply how : both_ways) {
    std::vector<float> c(m * n);
    gemm(m, n, k, {a.data(), k, 1}, {b.data(), n, 1}, c.data(), n, false, how);
    for (Index i = 0; i < m; ++i)
      for (Index j = 0; j < n; ++j) {
        double want = 0;
        for (Index l = 0; l < k; ++l) want += double(a[i * k + l]) * double(b[l * n + j]);
        ASSERT_EQ(c[i * n + j], want) << i << ", " << j;
      }
  }
}

}  // namespace
}  // namespace sy::cpu
