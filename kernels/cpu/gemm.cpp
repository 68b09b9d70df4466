#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <omp.h>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/tile.h"

namespace sy::cpu {
namespace {

// k is summed in blocks of at most this many, so that a packed panel of A (tile_rows x block) stays in the L1 cache.
constexpr Index max_k_block = 384;
// How many rows of A are packed together: a few panels.
constexpr Index a_rows = 8 * tile_rows;
// How many floats a task's packed part of B (k block x columns) may have, so that it stays in the L2 cache.
constexpr Index max_b_floats = 96 * 1024;

// Blocks are equal, so that none is short, and whole cache lines long.
Index k_block(Index k) {
  return round_up(ceil_div(k, ceil_div(k, max_k_block)), 16);
}

// Where the panel of columns from j on begins in rows [l, l + depth) of a packed operand of n columns: whole blocks of rows lie
// one after the other, in each of them the panels. It works for a const operand and for one that is being packed.
template <class Float>
Float* packed_panel(Float* packed, Index n, Index l, Index depth, Index j) {
  return packed + l * round_up(n, tile_cols) + j * depth;
}

// Whether so few rows are multiplied that memory sets the pace: each panel of B is read once, and need not stay in a cache.
bool reads_once(const Problem& p) {
  return p.b_packed && p.m <= a_rows;
}

// Rows [i, i_end) and columns [j, j_end) of one product.
struct Task {
  const Problem* problem;
  Index i, i_end, j, j_end;
};

// Runs tasks one after the other on one thread.
class Worker {
 public:
  void run(const Task& task) {
    const Problem& p = *task.problem;
    if (p.k == 0) {
      if (!p.accumulate)
        for (Index i = task.i; i < task.i_end; ++i) std::fill_n(p.c + i * p.ldc + task.j, task.j_end - task.j, 0.0f);
      return;
    }
    const Index block = k_block(p.k);
    for (Index l = 0; l < p.k; l += block) {
      const Index depth = std::min(block, p.k - l);
      pack_b(task, l, depth);
      for (Index i = task.i; i < task.i_end; i += a_rows)
        add(task, i, std::min(i + a_rows, task.i_end), l, depth, p.accumulate || l > 0);
    }
  }

 private:
  // Packs rows [l, l + depth) of the task's columns of B, which are often still packed from the task before.
  void pack_b(const Task& task, Index l, Index depth) {
    if (task.problem->b_packed) {
      b_panels_ = packed_panel(task.problem->b_packed, task.problem->n, l, depth, task.j);
      return;
    }
    if (packed_problem_ == task.problem && packed_j_ == task.j && packed_l_ == l) return;
    packed_problem_ = task.problem;
    packed_j_ = task.j;
    packed_l_ = l;
    const Index cols = task.j_end - task.j;
    float* const panels = memory().b.reserve(round_up(cols, tile_cols) * depth + lanes);
    b_panels_ = panels;
    const Matrix& b = task.problem->b;
    pack<tile_cols>(b.data + l * b.row_stride + task.j * b.col_stride, b.col_stride, b.row_stride, cols, depth, panels);
  }

  // Rows [begin, end), at most a_rows, of the task's part of C (+)= those of A times the packed B.
  void add(const Task& task, Index begin, Index end, Index l, Index depth, bool accumulate) {
    const Problem& p = *task.problem;
    float* a_panels = memory().a.reserve(a_rows * depth + lanes);
    pack<tile_rows>(p.a.data + begin * p.a.row_stride + l * p.a.col_stride, p.a.row_stride, p.a.col_stride, end - begin,
                    depth, a_panels);
    if (reads_once(p) && p.m > 2) return stream(task, begin, end, l, depth, accumulate, a_panels);
    for (Index i = begin; i < end; i += tile_rows) {
      for (Index j = task.j; j < task.j_end; j += tile_cols) {
        Tiles<1, tile_rows>::run(std::min<Index>(tile_rows, end - i), depth, a_panels + (i - begin) * depth,
                                 b_panels_ + (j - task.j) * depth, tile_cols, p.c + i * p.ldc + j, p.ldc,
                                 std::min<Index>(tile_cols, task.j_end - j), accumulate);
      }
    }
  }

  // The same panel by panel, so that each is read from memory once, while those before it are multiplied.
  void stream(const Task& task, Index begin, Index end, Index l, Index depth, bool accumulate, const float* a_panels) {
    const Problem& p = *task.problem;
    const Index strips = ceil_div(end - begin, tile_rows), step = tile_cols / strips, below = l + depth;
    for (Index j = task.j; j < task.j_end; j += tile_cols) {
      const float* const panel = b_panels_ + (j - task.j) * depth;
      const float* next = panel + tile_cols * depth;
      if (j + tile_cols >= task.j_end && below < p.k)
        next = packed_panel(p.b_packed, p.n, below, std::min(depth, p.k - below), task.j);
      for (Index i = begin; i < end; i += tile_rows, next += depth * step)
        Tiles<1, tile_rows, true>::run(std::min<Index>(tile_rows, end - i), depth, a_panels + (i - begin) * depth,
                                       panel, tile_cols, p.c + i * p.ldc + j, p.ldc,
                                       std::min<Index>(tile_cols, task.j_end - j), accumulate, {next, step});
    }
  }

  // A thread keeps this memory from product to product.
  struct Memory {
    Buffer a, b;
  };
  static Memory& memory() {
    thread_local Memory memory;
    return memory;
  }

  const Problem* packed_problem_ = nullptr;
  Index packed_j_ = 0, packed_l_ = 0;
  const float* b_panels_ = nullptr;
};

double multiplications(const Problem& p) {
  return double(p.m) * double(p.n) * double(std::max<Index>(p.k, 1));
}

// Cuts a product into tasks of about `work` multiplications, of a shape that keeps packing cheap: as nearly square as
// the product and the cache allow.
void cut(const Problem& p, double work, std::vector<Task>& tasks) {
  if (p.m == 0 || p.n == 0) return;
  const Index k = std::max<Index>(p.k, 1), max_cols = std::max<Index>(tile_cols, max_b_floats / k_block(k));
  const double area = work / double(k);
  // How long equal parts of whole tiles are that come nearest to `length`.
  const auto part = [](Index size, double length, Index tile, Index longest) {
    const Index parts = std::max<Index>(std::lround(double(size) / length), ceil_div(size, longest));
    return round_up(ceil_div(size, parts), tile);
  };
  const Index cols = part(p.n, std::max(std::sqrt(area), area / double(p.m)), tile_cols, max_cols);
  const Index rows = part(p.m, area / double(std::min(cols, p.n)), tile_rows, p.m);
  for (Index j = 0; j < p.n; j += cols)
    for (Index i = 0; i < p.m; i += rows) tasks.push_back({&p, i, std::min(i + rows, p.m), j, std::min(j + cols, p.n)});
}

// Cuts a product of few rows into tasks of equal runs of columns: as many for each thread, as a task has little to pack.
void cut_columns(const Problem& p, int threads, std::vector<Task>& tasks) {
  constexpr Index floats = 128 * 1024;  // of B, in a task
  const Index parts = std::max<Index>(1, p.k * p.n / (floats * threads)) * threads;
  const Index cols = round_up(ceil_div(p.n, parts), tile_cols);
  for (Index j = 0; j < p.n; j += cols) tasks.push_back({&p, 0, p.m, j, std::min(j + cols, p.n)});
}

constexpr double serial_multiplications = 2.5e5;  // fewer take less time than waking the threads
constexpr double min_task_multiplications = 8e6;  // smaller tasks spend too much on packing,
constexpr double min_task_area = 128 * 128;       // and so do tasks of fewer elements of C
constexpr Index tasks_per_thread = 16;            // enough to even out threads of unequal speed

}  // namespace

void gemm_batch(std::span<const Problem> problems) {
  double total = 0;
  for (const Problem& p : problems) total += multiplications(p);
  const int threads = omp_in_parallel() || total < serial_multiplications ? 1 : omp_get_max_threads();
  thread_local std::vector<Task> tasks;  // whose memory stays
  tasks.clear();
  const double share = total / double(threads);
  const double work = threads == 1 ? total : std::max(share / tasks_per_thread, min_task_multiplications);
  for (const Problem& p : problems) {
    if (reads_once(p) && p.m > 0)
      cut_columns(p, threads, tasks);
    else
      cut(p, std::min(share, std::max(work, min_task_area * double(p.k))), tasks);
  }
  const Task* const first = tasks.data();
  const Index count = std::ssize(tasks);
#pragma omp parallel num_threads(threads) if (threads > 1 && count > 1)
  {
    Worker worker;
#pragma omp for schedule(dynamic)
    for (Index t = 0; t < count; ++t) worker.run(first[t]);
  }
}

Index packed_floats(Index k, Index n) {
  return k * round_up(n, tile_cols);
}

void pack_operand(Index k, Index n, Matrix b, float* packed) {
  constexpr Index columns = 8 * tile_cols;  // of a task
  const Index block = k_block(std::max<Index>(k, 1)), across = ceil_div(n, columns), down = ceil_div(k, block);
#pragma omp parallel for collapse(2) schedule(static) if (k * n > 4096)
  for (Index row = 0; row < down; ++row)
    for (Index column = 0; column < across; ++column) {
      const Index l = row * block, depth = std::min(block, k - l), j = column * columns;
      pack<tile_cols>(b.data + l * b.row_stride + j * b.col_stride, b.col_stride, b.row_stride,
                      std::min(columns, n - j), depth, packed_panel(packed, n, l, depth, j));
    }
}

void gemm(Index m, Index n, Index k, Matrix a, Matrix b, float* c, Index ldc, bool accumulate) {
  const Problem problem{m, n, k, a, b, c, ldc, accumulate};
  gemm_batch({&problem, 1});
}

void gemm_serial(Index m, Index n, Index k, Matrix a, Matrix b, float* c, Index ldc, bool accumulate) {
  const Problem problem{m, n, k, a, b, c, ldc, accumulate};
  std::vector<Task> tasks;
  cut(problem, multiplications(problem), tasks);
  Worker worker;
  for (const Task& task : tasks) worker.run(task);
}

// ---- the backend's products ----

namespace {

// A row-major matrix with `columns` columns, and its transpose.
Matrix plain(const float* data, Index columns) {
  return {data, columns, 1};
}
Matrix transposed(const float* data, Index columns) {
  return {data, 1, columns};
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
    return (use == WeightUse::output ? transposed : plain)(weight.f32() + e * N * Q, Q);
  }
  const float* packed(const Weight& weight, Index e) const {
    const ConstView form = use == WeightUse::output ? weight.output : weight.input;
    return form ? reinterpret_cast<const float*>(form.bytes()) + e * packed_floats(k, n) : nullptr;
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
                   .a = plain(a.f32() + first * b.k, b.k),
                   .b = b.matrix(weight.values, e),
                   .c = c.f32() + first * b.n,
                   .ldc = b.n,
                   .accumulate = false,
                   .b_packed = b.packed(weight, e)};
  });
}

}  // namespace

Index CpuBackend::prepared_bytes(const Shape& weight, DType dtype, WeightUse use) const {
  const Operand b(weight, use);
  return dtype == DType::f32 ? b.stack * packed_floats(b.k, b.n) * Index{sizeof(float)} : 0;
}

void CpuBackend::do_prepare(ConstView weight, WeightUse use, View prepared) {
  const Operand b(weight.shape(), use);
  for (Index e = 0; e < b.stack; ++e)
    pack_operand(b.k, b.n, b.matrix(weight, e),
                 reinterpret_cast<float*>(prepared.bytes()) + e * packed_floats(b.k, b.n));
}

void CpuBackend::do_gemm(const Gemm& desc, ConstView a, const Weight& b, View c) {
  const Operand right(b.values.shape(), desc.transpose_b ? WeightUse::output : WeightUse::input);
  const Problem problem{.m = c.dim(0),
                        .n = right.n,
                        .k = right.k,
                        .a = (desc.transpose_a ? transposed : plain)(a.f32(), a.dim(1)),
                        .b = right.matrix(b.values, 0),
                        .c = c.f32(),
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
    const Matrix a = transposed(dy.f32() + first * n, n), b = plain(x.f32() + first * q, q);
    return Problem{n, q, count, a, b, dw.f32() + e * n * q, q, true};
  });
}

}  // namespace sy::cpu
