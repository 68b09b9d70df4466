#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include <omp.h>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/tile.h"

namespace sy::cpu {
namespace {

// How many floats a task's packed part of B (k block x columns) may have, so that it stays in the L2 cache.
constexpr Index max_b_floats = 96 * 1024;
// How many rows of bf16 are summed together, before they are rounded.
constexpr Index max_rounded_rows = 512;

// A panel is what a tile reads of an operand: `rows` rows of A, or `cols` columns of B, of a block of k. What the two kinds of
// panels and tiles say:
//   Packed            the elements that they hold
//   step              panels hold a multiple of it along k, completed by zeros
//   max_k_block       k is summed in blocks of at most this many, so that a panel of A stays in the L1 cache
//   k_multiple        and blocks are a multiple of this many, which makes whole cache lines
//   pack_rows         rows [i, i + count) of columns [l, l + depth) of A; beyond their end it may write `beyond` elements
//   pack_columns      columns [j, j + count) of rows [l, l + depth) of B; likewise
//   multiply          rows x cols of c, which are `stride` apart, (+)= the product of two panels

// Tiles of floats, in tile.h. bf16 is widened when it is packed.
struct FloatTiles {
  using Packed = float;
  static constexpr Index rows = tile_rows, cols = tile_cols, step = 1, max_k_block = 384, k_multiple = 16,
                         beyond = lanes;

  // pack() of tile.h.
  template <int width>
  static void pack_vectors(const Matrix& m, Index first, Index stride, Index k_stride, Index count, Index k,
                           float* out) {
    if (m.dtype == DType::bf16)
      pack<width>(reinterpret_cast<const Bf16*>(m.data) + first, stride, k_stride, count, k, out);
    else
      pack<width>(reinterpret_cast<const float*>(m.data) + first, stride, k_stride, count, k, out);
  }
  static void pack_rows(const Matrix& a, Index i, Index count, Index l, Index depth, float* out) {
    pack_vectors<tile_rows>(a, i * a.row_stride + l * a.col_stride, a.row_stride, a.col_stride, count, depth, out);
  }
  static void pack_columns(const Matrix& b, Index l, Index depth, Index j, Index count, float* out) {
    pack_vectors<tile_cols>(b, l * b.row_stride + j * b.col_stride, b.col_stride, b.row_stride, count, depth, out);
  }
  void multiply(Index m, Index n, Index k, const float* a, const float* b, float* c, Index stride, bool accumulate) {
    Tiles<1, tile_rows>::run(m, k, a, b, tile_cols, c, stride, n, accumulate);
  }
};

// Pairs of bf16, in pairs.h.
template <class Unit>
struct PairTiles {
  using Packed = Bf16;
  static constexpr Index rows = pair_panel, cols = pair_panel, step = pair_step, max_k_block = 512, k_multiple = 32,
                         beyond = 0;

  static void pack_rows(const Matrix& a, Index i, Index count, Index l, Index depth, Bf16* out) {
    pack_left_pairs(a, i, count, l, depth, out);
  }
  static void pack_columns(const Matrix& b, Index l, Index depth, Index j, Index count, Bf16* out) {
    pack_right_pairs(b, l, depth, j, count, out);
  }
  void multiply(Index m, Index n, Index k, const Bf16* a, const Bf16* b, float* c, Index stride, bool accumulate) {
    const Index steps = ceil_div(k, pair_step);
    if (m == rows && n == cols) return unit.multiply(steps, a, b, c, stride, accumulate);
    float whole[rows * cols] = {};
    if (accumulate)
      for (Index i = 0; i < m; ++i) std::copy_n(c + i * stride, n, whole + i * cols);
    unit.multiply(steps, a, b, whole, cols, accumulate);
    for (Index i = 0; i < m; ++i) std::copy_n(whole + i * cols, n, c + i * stride);
  }
  Unit unit;
};

#if defined(__AMX_BF16__)
using NativePairs = PairTiles<AmxPairs>;
constexpr bool has_pairs = true;
#elif defined(__AVX512BF16__)
using NativePairs = PairTiles<Avx512Pairs>;
constexpr bool has_pairs = true;
#else
using NativePairs = PairTiles<PortablePairs>;
constexpr bool has_pairs = false;
#endif

// Calls body(Tiles{}) with what multiplies operands of the type.
template <class Body>
auto with_tiles(DType type, Multiply how, const Body& body) {
  if (type == DType::bf16 && how == Multiply::portable_pairs)
    return body(std::type_identity<PairTiles<PortablePairs>>{});
  if (type == DType::bf16 && how == Multiply::best && has_pairs) return body(std::type_identity<NativePairs>{});
  return body(std::type_identity<FloatTiles>{});
}

// How many rows of A are packed together: a few panels.
template <class Panels>
constexpr Index a_rows = 8 * Panels::rows;

// Blocks are equal, so that none is short, and whole cache lines long.
template <class Panels>
Index k_block(Index k) {
  return round_up(ceil_div(k, ceil_div(k, Panels::max_k_block)), Panels::k_multiple);
}

// Where the panel of columns from j on begins in rows [l, l + depth) of a packed operand of n columns: whole blocks of rows lie
// one after the other, in each of them the panels. It works for a const operand and for one that is being packed.
template <class Panels, class Packed>
Packed* packed_panel(Packed* packed, Index n, Index l, Index depth, Index j) {
  return packed + l * round_up(n, Panels::cols) + j * round_up(depth, Panels::step);
}

// Whether so few rows are multiplied that memory sets the pace: each panel of B is read once, and need not stay in a cache.
template <class Panels>
bool reads_once(const Problem& p) {
  return p.b_packed && p.m <= a_rows<Panels>;
}

// Rows [i, i_end) and columns [j, j_end) of one product.
struct Task {
  const Problem* problem;
  Index i, i_end, j, j_end;
};

// Runs tasks one after the other on one thread.
template <class Panels>
class Worker {
  using Packed = typename Panels::Packed;

 public:
  void run(const Task& task) {
    const Problem& p = *task.problem;
    const Index rows = task.i_end - task.i, cols = task.j_end - task.j, first = task.i * p.ldc + task.j;
    if (p.c.dtype == DType::f32) {
      c_ = reinterpret_cast<float*>(p.c.data) + first;
      stride_ = p.ldc;
      return sum(task);
    }
    // What is bf16 is summed in memory of the task's size, and rounded from there.
    Bf16* const to = reinterpret_cast<Bf16*>(p.c.data) + first;
    c_ = memory().c.reserve(rows * cols);
    stride_ = cols;
    if (p.accumulate)
      for (Index i = 0; i < rows; ++i) widen(to + i * p.ldc, cols, c_ + i * cols);
    sum(task);
    for (Index i = 0; i < rows; ++i) round(c_ + i * cols, cols, to + i * p.ldc);
  }

 private:
  // The task's part of C, which lies at c_, (+)= its sums.
  void sum(const Task& task) {
    const Problem& p = *task.problem;
    if (p.k == 0) {
      if (!p.accumulate)
        for (Index i = 0; i < task.i_end - task.i; ++i) std::fill_n(c_ + i * stride_, task.j_end - task.j, 0.0f);
      return;
    }
    const Index block = k_block<Panels>(p.k), many = a_rows<Panels>;
    for (Index l = 0; l < p.k; l += block) {
      const Index depth = std::min(block, p.k - l);
      pack_b(task, l, depth);
      for (Index i = task.i; i < task.i_end; i += many)
        add(task, i, std::min(i + many, task.i_end), l, depth, p.accumulate || l > 0);
    }
  }

  // Packs rows [l, l + depth) of the task's columns of B, which are often still packed from the task before.
  void pack_b(const Task& task, Index l, Index depth) {
    if (task.problem->b_packed) {
      b_panels_ = packed_panel<Panels>(packed_b(*task.problem), task.problem->n, l, depth, task.j);
      return;
    }
    if (packed_problem_ == task.problem && packed_j_ == task.j && packed_l_ == l) return;
    packed_problem_ = task.problem;
    packed_j_ = task.j;
    packed_l_ = l;
    const Index cols = task.j_end - task.j;
    Packed* const panels = reserve(memory().b, round_up(cols, Panels::cols), depth);
    b_panels_ = panels;
    Panels::pack_columns(task.problem->b, l, depth, task.j, cols, panels);
  }

  // Rows [begin, end), at most a_rows, of the task's part of C (+)= those of A times the packed B.
  void add(const Task& task, Index begin, Index end, Index l, Index depth, bool accumulate) {
    const Problem& p = *task.problem;
    Packed* const a_panels = reserve(memory().a, a_rows<Panels>, depth);
    Panels::pack_rows(p.a, begin, end - begin, l, depth, a_panels);
    if constexpr (std::is_same_v<Panels, FloatTiles>)
      if (reads_once<Panels>(p) && p.m > 2) return stream(task, begin, end, l, depth, accumulate, a_panels);
    const Index held = round_up(depth, Panels::step);
    for (Index i = begin; i < end; i += Panels::rows)
      for (Index j = task.j; j < task.j_end; j += Panels::cols)
        panels_.multiply(std::min<Index>(Panels::rows, end - i), std::min<Index>(Panels::cols, task.j_end - j), depth,
                         a_panels + (i - begin) * held, b_panels_ + (j - task.j) * held, at(task, i, j), stride_,
                         accumulate);
  }

  // The same panel by panel, so that each is read from memory once, while those before it are multiplied.
  void stream(const Task& task, Index begin, Index end, Index l, Index depth, bool accumulate, const float* a_panels) {
    const Problem& p = *task.problem;
    const Index strips = ceil_div(end - begin, tile_rows), step = tile_cols / strips, below = l + depth;
    for (Index j = task.j; j < task.j_end; j += tile_cols) {
      const float* const panel = b_panels_ + (j - task.j) * depth;
      const float* next = panel + tile_cols * depth;
      if (j + tile_cols >= task.j_end && below < p.k)
        next = packed_panel<Panels>(packed_b(p), p.n, below, std::min(depth, p.k - below), task.j);
      for (Index i = begin; i < end; i += tile_rows, next += depth * step)
        Tiles<1, tile_rows, true>::run(std::min<Index>(tile_rows, end - i), depth, a_panels + (i - begin) * depth,
                                       panel, tile_cols, at(task, i, j), stride_,
                                       std::min<Index>(tile_cols, task.j_end - j), accumulate, {next, step});
    }
  }

  // Where the sum of element (i, j) of C is.
  float* at(const Task& task, Index i, Index j) const { return c_ + (i - task.i) * stride_ + j - task.j; }

  static const Packed* packed_b(const Problem& p) { return reinterpret_cast<const Packed*>(p.b_packed); }
  static Packed* reserve(Buffer& buffer, Index vectors, Index depth) {
    const Index elements = vectors * round_up(depth, Panels::step) + Panels::beyond;
    return reinterpret_cast<Packed*>(buffer.reserve(ceil_div(elements * Index{sizeof(Packed)}, 4)));
  }

  // A thread keeps this memory from product to product.
  struct Memory {
    Buffer a, b, c;
  };
  static Memory& memory() {
    thread_local Memory memory;
    return memory;
  }

  const Problem* packed_problem_ = nullptr;
  Index packed_j_ = 0, packed_l_ = 0;
  const Packed* b_panels_ = nullptr;
  float* c_ = nullptr;
  Index stride_ = 0;
  Panels panels_;
};

double multiplications(const Problem& p) {
  return double(p.m) * double(p.n) * double(std::max<Index>(p.k, 1));
}

// Cuts a product into tasks of about `work` multiplications, of a shape that keeps packing cheap: as nearly square as
// the product and the cache allow.
template <class Panels>
void cut(const Problem& p, double work, std::vector<Task>& tasks) {
  if (p.m == 0 || p.n == 0) return;
  const Index k = std::max<Index>(p.k, 1), max_cols = std::max<Index>(Panels::cols, max_b_floats / k_block<Panels>(k));
  const double area = work / double(k);
  // How long equal parts of whole tiles are that come nearest to `length`.
  const auto part = [](Index size, double length, Index tile, Index longest) {
    const Index parts = std::max<Index>(std::lround(double(size) / length), ceil_div(size, longest));
    return round_up(ceil_div(size, parts), tile);
  };
  const Index cols = part(p.n, std::max(std::sqrt(area), area / double(p.m)), Panels::cols, max_cols);
  const Index most_rows = p.c.dtype == DType::f32 ? p.m : std::min(p.m, max_rounded_rows);
  const Index rows = part(p.m, area / double(std::min(cols, p.n)), Panels::rows, most_rows);
  for (Index j = 0; j < p.n; j += cols)
    for (Index i = 0; i < p.m; i += rows) tasks.push_back({&p, i, std::min(i + rows, p.m), j, std::min(j + cols, p.n)});
}

// Cuts a product of few rows into tasks of equal runs of columns: as many for each thread, as a task has little to pack.
template <class Panels>
void cut_columns(const Problem& p, int threads, std::vector<Task>& tasks) {
  constexpr Index floats = 128 * 1024;  // of B, in a task
  const Index parts = std::max<Index>(1, p.k * p.n / (floats * threads)) * threads;
  const Index cols = round_up(ceil_div(p.n, parts), Panels::cols);
  for (Index j = 0; j < p.n; j += cols) tasks.push_back({&p, 0, p.m, j, std::min(j + cols, p.n)});
}

constexpr double serial_multiplications = 2.5e5;  // fewer take less time than waking the threads
constexpr double min_task_multiplications = 8e6;  // smaller tasks spend too much on packing,
constexpr double min_task_area = 128 * 128;       // and so do tasks of fewer elements of C
constexpr Index tasks_per_thread = 16;            // enough to even out threads of unequal speed

template <class Panels>
void multiply_all(std::span<const Problem> problems) {
  double total = 0;
  for (const Problem& p : problems) total += multiplications(p);
  const int threads = omp_in_parallel() || total < serial_multiplications ? 1 : omp_get_max_threads();
  thread_local std::vector<Task> tasks;  // whose memory stays
  tasks.clear();
  const double share = total / double(threads);
  const double work = threads == 1 ? total : std::max(share / tasks_per_thread, min_task_multiplications);
  for (const Problem& p : problems) {
    if (reads_once<Panels>(p) && p.m > 0)
      cut_columns<Panels>(p, threads, tasks);
    else
      cut<Panels>(p, std::min(share, std::max(work, min_task_area * double(p.k))), tasks);
  }
  const Task* const first = tasks.data();
  const Index count = std::ssize(tasks);
#pragma omp parallel num_threads(threads) if (threads > 1 && count > 1)
  {
    Worker<Panels> worker;
#pragma omp for schedule(dynamic)
    for (Index t = 0; t < count; ++t) worker.run(first[t]);
  }
}

}  // namespace

void gemm_batch(std::span<const Problem> problems, Multiply how) {
  if (problems.empty()) return;
  with_tiles(problems.front().a.dtype, how,
             [&]<class Panels>(std::type_identity<Panels>) { multiply_all<Panels>(problems); });
}

Index packed_bytes(Index k, Index n, DType dtype, Multiply how) {
  return with_tiles(dtype, how, [&]<class Panels>(std::type_identity<Panels>) {
    return round_up(k, Panels::step) * round_up(n, Panels::cols) * Index{sizeof(typename Panels::Packed)};
  });
}

void pack_operand(Index k, Index n, const Matrix& b, std::byte* packed, Multiply how) {
  with_tiles(b.dtype, how, [&]<class Panels>(std::type_identity<Panels>) {
    constexpr Index columns = 8 * Panels::cols;  // of a task
    const Index block = k_block<Panels>(std::max<Index>(k, 1)), across = ceil_div(n, columns),
                down = ceil_div(k, block);
    auto* const to = reinterpret_cast<typename Panels::Packed*>(packed);
#pragma omp parallel for collapse(2) schedule(static) if (k * n > 4096)
    for (Index row = 0; row < down; ++row)
      for (Index column = 0; column < across; ++column) {
        const Index l = row * block, depth = std::min(block, k - l), j = column * columns;
        Panels::pack_columns(b, l, depth, j, std::min(columns, n - j), packed_panel<Panels>(to, n, l, depth, j));
      }
  });
}

void gemm(Index m, Index n, Index k, const Matrix& a, const Matrix& b, Place c, Index ldc, bool accumulate,
          Multiply how) {
  const Problem problem{m, n, k, a, b, c, ldc, accumulate};
  gemm_batch({&problem, 1}, how);
}

void gemm_serial(Index m, Index n, Index k, const Matrix& a, const Matrix& b, Place c, Index ldc, bool accumulate,
                 Multiply how) {
  const Problem problem{m, n, k, a, b, c, ldc, accumulate};
  with_tiles(a.dtype, how, [&]<class Panels>(std::type_identity<Panels>) {
    std::vector<Task> tasks;
    cut<Panels>(problem, multiplications(problem), tasks);
    Worker<Panels> worker;
    for (const Task& task : tasks) worker.run(task);
  });
}

// ---- the backend's products ----

namespace {

// The row-major matrix with `columns` columns that begins with element `first` of x, and its transpose.
Matrix plain(ConstView x, Index first, Index columns) {
  return {x, first, columns, 1};
}
Matrix transposed(ConstView x, Index first, Index columns) {
  return {x, first, 1, columns};
}

// make(expert, its first row, how many it owns) gives the product of each expert that owns rows.
template <class Make>
void multiply_by_expert(const ExpertRows& rows, const Make& make) {
  std::vector<Problem> problems;
  const std::int32_t* const begin = rows.host;
  for (Index e = 0; e + 1 < rows.offsets.dim(0); ++e)
    if (begin[e] < begin[e + 1]) problems.push_back(make(e, begin[e], begin[e + 1] - begin[e]));
  gemm_batch(problems);
}

// A weight [N, Q] or [E, N, Q] as stacked right operands [k, n] of a product: of y = x w^T, or of dx = dy w.
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
    return (use == WeightUse::output ? transposed : plain)(weight, e * N * Q, Q);
  }
  const std::byte* packed(const Weight& weight, Index e) const {
    const ConstView form = use == WeightUse::output ? weight.output : weight.input;
    return form ? form.bytes() + e * packed_bytes(k, n, weight.values.dtype()) : nullptr;
  }
  WeightUse use;
  Index stack, N, Q, k, n;
};

// c_e = a_e b_e
void multiply_by_stack(ConstView a, const Weight& weight, WeightUse use, const ExpertRows& rows, View c) {
  const Operand b(weight.values.shape(), use);
  multiply_by_expert(rows, [&](Index e, Index first, Index count) {
    return Problem{.m = count,
                   .n = b.n,
                   .k = b.k,
                   .a = plain(a, first * b.k, b.k),
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

void CpuBackend::do_gemm(const Gemm& desc, ConstView a, const Weight& b, View c) {
  const Operand right(b.values.shape(), desc.transpose_b ? WeightUse::output : WeightUse::input);
  const Problem problem{.m = c.dim(0),
                        .n = right.n,
                        .k = right.k,
                        .a = (desc.transpose_a ? transposed : plain)(a, 0, a.dim(1)),
                        .b = right.matrix(b.values, 0),
                        .c = c,
                        .ldc = right.n,
                        .accumulate = desc.accumulate,
                        .b_packed = right.packed(b, 0)};
  gemm_batch({&problem, 1});
}

void CpuBackend::do_grouped_gemm(ConstView x, const Weight& w, const ExpertRows& rows, View y) {
  multiply_by_stack(x, w, WeightUse::output, rows, y);
}

void CpuBackend::do_grouped_gemm_input(ConstView dy, const Weight& w, const ExpertRows& rows, View dx) {
  multiply_by_stack(dy, w, WeightUse::input, rows, dx);
}

void CpuBackend::do_grouped_gemm_weight(ConstView dy, ConstView x, const ExpertRows& rows, View dw) {
  const Index n = dw.dim(1), q = dw.dim(2);
  multiply_by_expert(rows, [&](Index e, Index first, Index count) {
    const Matrix a = transposed(dy, first * n, n), b = plain(x, first * q, q);
    return Problem{n, q, count, a, b, {dw, e * n * q}, q, true};
  });
}

}  // namespace sy::cpu
