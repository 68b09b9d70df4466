#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include <omp.h>

#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/rows.h"

namespace sy::cpu {
namespace {

// Largest number of bytes of a task's packed block of B (k block x columns), so that it stays in
// the L2 cache.
constexpr Index max_b_bytes = 384 * 1024;
// The same for an operand that is already packed: it stays in the L3 cache.
constexpr Index max_packed_bytes = 8 * max_b_bytes;
// Largest number of rows of bf16 that are summed together before they are rounded.
constexpr Index max_rounded_rows = 512;

// Whether there are so few rows that the product is bound by memory. Each panel of B is then read
// once, and need not stay in a cache.
template <class Panels>
bool reads_once(const Problem& p) {
  return p.b_packed && p.m <= a_rows<Panels>;
}

// Rows [i, i_end) and columns [j, j_end) of one product, of both projections if it has two.
struct Task {
  const Problem* problem;
  Index i, i_end, j, j_end;
  Index cols() const { return j_end - j; }
};

// Runs tasks one after the other on one thread.
template <class Panels>
class Worker {
  using Packed = typename Panels::Packed;

 public:
  // The outer loop is over blocks of k and the inner one over rows, because the packed B should
  // stay in the cache. A block of rows starts with its addend. It is finished when its last
  // products are summed.
  void run(const Task& task) {
    const Problem& p = *task.problem;
    const Index block = p.k > 0 ? k_block<Panels>(p.k) : 1, many = a_rows<Panels>;
    const bool once = p.k <= block;
    for (Index l = 0; l == 0 || l < p.k; l += block) {
      const Index depth = std::min(block, p.k - l);
      if (depth > 0) pack_b(task, l, depth);
      for (Index i = task.i; i < task.i_end; i += many) {
        const Index end = std::min(i + many, task.i_end);
        const Packed* const a_panels = depth > 0 ? pack_a(p, i, end, l, depth) : nullptr;
        // Sums that are rounded, or read by an epilogue, are processed in strips that fit the L1
        // cache.
        const Index rows = once && !accumulates_in_c(p) && !b_stays(p) ? Panels::rows : many;
        for (Index r = i; r < end; r += rows) {
          const Index r_end = std::min(r + rows, end);
          if (l == 0 || !accumulates_in_c(p)) locate(task, once ? r : task.i, once ? r_end : task.i_end);
          const bool adds = l > 0 || p.accumulate || p.addend;
          if (l == 0) begin(task, r, r_end);
          if (depth > 0) add(task, r, r_end, l, depth, adds, a_panels + (r - i) * round_up(depth, Panels::step));
          if (l + block >= p.k) finish(task, r, r_end);
        }
      }
    }
  }

 private:
  // Whether sums are stored in C. Otherwise they are in memory of this thread, and are rounded from
  // there or discarded.
  static bool accumulates_in_c(const Problem& p) { return p.c.dtype == DType::f32 && p.c.data; }

  // Sets the address of the sums of rows [i, end).
  void locate(const Task& task, Index i, Index end) {
    const Problem& p = *task.problem;
    first_ = i;
    if (accumulates_in_c(p)) {
      c_ = reinterpret_cast<float*>(p.c.data) + i * p.ldc + task.j;
      stride_ = p.ldc;
      projection_stride_ = p.n;
    } else {
      projection_stride_ = task.cols();
      stride_ = p.num_projections * projection_stride_;
      c_ = memory().c.reserve((end - i) * stride_);
    }
  }

  // Calls `visit` for each projection of rows [i, end). Its arguments are the sums of the row, the
  // index of its first element in C, its first column j, and its number of columns.
  template <class Visit>
  void each_row(const Task& task, Index i, Index end, const Visit& visit) {
    const Problem& p = *task.problem;
    for (Index r = i; r < end; ++r)
      for (Index h = 0; h < p.num_projections; ++h) {
        const Index j = h * p.n + task.j;
        visit(at(task, h, r, task.j), r * p.ldc + j, j, task.cols());
      }
  }

  // Sets rows [i, end) of the task's block of C to the addend, or to zero for an empty product.
  void begin(const Task& task, Index i, Index end) {
    const Problem& p = *task.problem;
    const std::byte* const addend = p.addend ? p.addend : p.accumulate && !accumulates_in_c(p) ? p.c.data : nullptr;
    if (!addend && (p.k > 0 || p.accumulate)) return;
    each_row(task, i, end, [&](float* sums, Index first, Index, Index n) {
      if (!addend)
        std::fill_n(sums, n, 0.0f);
      else if (p.c.dtype == DType::f32)
        std::copy_n(reinterpret_cast<const float*>(addend) + first, n, sums);
      else
        widen(reinterpret_cast<const Bf16*>(addend) + first, n, sums);
    });
  }

  // Adds the bias, rounds, and calls the epilogue, when rows [i, end) of the task's block of C are
  // summed.
  void finish(const Task& task, Index i, Index end) {
    const Problem& p = *task.problem;
    const bool narrow = p.c.dtype == DType::bf16;
    if (p.bias || narrow)
      each_row(task, i, end, [&](float* sums, Index first, Index j, Index n) {
        if (p.bias && narrow) add_bias(reinterpret_cast<const Bf16*>(p.bias) + j, n, sums);
        if (p.bias && !narrow) add_bias(reinterpret_cast<const float*>(p.bias) + j, n, sums);
        if (!narrow) return;
        Bf16* const to = p.c.data ? reinterpret_cast<Bf16*>(p.c.data) + first : rounded(n);
        round(sums, n, to);
        if (p.epilogue) widen(to, n, sums);
      });
    if (p.epilogue) p.epilogue({i, task.j, end - i, task.cols(), at(task, 0, i, task.j), stride_, projection_stride_});
  }
  template <class T>
  static void add_bias(const T* bias, Index n, float* sums) {
#pragma omp simd
    for (Index i = 0; i < n; ++i) sums[i] += bias[i];
  }
  static Bf16* rounded(Index n) {
    return reinterpret_cast<Bf16*>(memory().rounded.reserve(ceil_div(n, 2)));
  }

  // Packs rows [l, l + depth) of the task's columns of B. Often the previous task has packed them
  // already.
  void pack_b(const Task& task, Index l, Index depth) {
    const Problem& p = *task.problem;
    if (p.b_packed) {
      for (Index h = 0; h < p.num_projections; ++h)
        b_panels_[h] = packed_panel<Panels>(packed_b(p), p.num_projections * p.n, l, depth, h * p.n + task.j);
      return;
    }
    const Packing columns{&p, task.j, task.j_end, l};
    if (columns == packed_columns_) return;
    packed_columns_ = columns;
    const Index whole = round_up(task.cols(), Panels::cols);
    Packed* const panels = reserve(memory().b, p.num_projections * whole, depth);
    for (Index h = 0; h < p.num_projections; ++h) {
      Packed* const to = panels + h * whole * round_up(depth, Panels::step);
      b_panels_[h] = to;
      Panels::pack_columns(p.b, l, depth, h * p.n + task.j, task.cols(), to);
    }
  }

  // Packs columns [l, l + depth) of rows [i, end) of A, at most a_rows. The previous task may have
  // packed them already.
  const Packed* pack_a(const Problem& p, Index i, Index end, Index l, Index depth) {
    Packed* const panels = reserve(memory().a, a_rows<Panels>, depth);
    const Packing rows{&p, i, end, l};
    if (rows != packed_rows_) Panels::pack_rows(p.a, i, end - i, l, depth, panels);
    packed_rows_ = rows;
    return panels;
  }

  // Whether a panel of B stays in the L1 cache while those of A are streamed. This is always so for
  // a pre-packed B: it comes from beyond the L2 cache and should be read once.
  static bool b_stays(const Problem& p) {
    return Panels::b_stays || p.b_packed;
  }

  // Rows [begin, end), at most a_rows, of the task's block of C (+)= those of A, in a_panels, times
  // the packed B.
  void add(const Task& task, Index begin, Index end, Index l, Index depth, bool accumulate, const Packed* a_panels) {
    const Problem& p = *task.problem;
    for (Index h = 0; h < p.num_projections; ++h) {
      if constexpr (std::is_same_v<Panels, FloatTiles>)
        if (p.b_packed && p.m > 2) {
          stream(task, h, begin, end, l, depth, accumulate, a_panels);
          continue;
        }
      const Index padded_depth = round_up(depth, Panels::step);
      const auto multiply = [&](Index i, Index j) {
        panels_.multiply(std::min<Index>(Panels::rows, end - i), std::min<Index>(Panels::cols, task.j_end - j), depth,
                         a_panels + (i - begin) * padded_depth, b_panels_[h] + (j - task.j) * padded_depth,
                         at(task, h, i, j), stride_, accumulate);
      };
      if (b_stays(p)) {
        for (Index j = task.j; j < task.j_end; j += Panels::cols)
          for (Index i = begin; i < end; i += Panels::rows) multiply(i, j);
      } else {
        for (Index i = begin; i < end; i += Panels::rows)
          for (Index j = task.j; j < task.j_end; j += Panels::cols) multiply(i, j);
      }
    }
  }

  // The same by panels of B, with a prefetch of the next one. A pre-packed B is read from beyond
  // the L2 cache once per block of rows, while the block's rows of A stay in that cache.
  void stream(const Task& task, Index projection, Index begin, Index end, Index l, Index depth, bool accumulate,
              const float* a_panels) {
    const Problem& p = *task.problem;
    const Index strips = ceil_div(end - begin, tile_rows), step = tile_cols / strips, below = l + depth;
    for (Index j = task.j; j < task.j_end; j += tile_cols) {
      const float* const panel = b_panels_[projection] + (j - task.j) * depth;
      const float* next = panel + tile_cols * depth;
      if (j + tile_cols >= task.j_end) {
        if (projection + 1 < p.num_projections)
          next = b_panels_[projection + 1];
        else if (below < p.k)
          next =
              packed_panel<Panels>(packed_b(p), p.num_projections * p.n, below, std::min(depth, p.k - below), task.j);
      }
      for (Index i = begin; i < end; i += tile_rows, next += depth * step)
        Tiles<1, tile_rows, true>::run(std::min<Index>(tile_rows, end - i), depth, a_panels + (i - begin) * depth,
                                       panel, tile_cols, at(task, projection, i, j), stride_,
                                       std::min<Index>(tile_cols, task.j_end - j), accumulate, {next, step});
    }
  }

  // Address of the sum of element (i, j) of a projection of C.
  float* at(const Task& task, Index projection, Index i, Index j) const {
    return c_ + (i - first_) * stride_ + projection * projection_stride_ + j - task.j;
  }

  static const Packed* packed_b(const Problem& p) {
    return reinterpret_cast<const Packed*>(p.b_packed);
  }
  static Packed* reserve(Buffer& buffer, Index vectors, Index depth) {
    const Index elements = vectors * round_up(depth, Panels::step) + Panels::overrun;
    return reinterpret_cast<Packed*>(buffer.reserve(ceil_div(elements * Index{sizeof(Packed)}, 4)));
  }

  // Buffers of a thread, reused from product to product.
  struct Memory {
    Buffer a, b, c, rounded;
  };
  static Memory& memory() {
    thread_local Memory memory;
    return memory;
  }

  // Identity of the packed data: rows of A, or columns of B, [begin, end) of the block of k that
  // begins at l.
  struct Packing {
    const Problem* problem = nullptr;
    Index begin = 0, end = 0, l = 0;
    bool operator==(const Packing&) const = default;
  };
  Packing packed_rows_, packed_columns_;
  const Packed* b_panels_[2] = {};
  float* c_ = nullptr;
  Index first_ = 0, stride_ = 0, projection_stride_ = 0;
  Panels panels_;
};

double multiplications(const Problem& p) {
  return double(p.m) * double(p.num_projections * p.n) * double(std::max<Index>(p.k, 1));
}

template <class Panels>
Index column_tile(const Problem& p) {
  static_assert(epilogue_columns % Panels::cols == 0);
  return p.epilogue ? epilogue_columns : Panels::cols;
}

// Divides a product into tasks of about `work` multiplications. Tasks are as nearly square as the
// product and the cache allow, which keeps packing cheap.
template <class Panels>
void split_into_tasks(const Problem& p, double work, std::vector<Task>& tasks) {
  if (p.m == 0 || p.n == 0) return;
  // The columns of a task are those of each projection, and a multiple of an epilogue's columns.
  const Index k = std::max<Index>(p.k, 1), tile = column_tile<Panels>(p);
  constexpr Index element = sizeof(typename Panels::Packed);
  const Index max_cols =
      std::max(tile, (p.b_packed ? max_packed_bytes : max_b_bytes) / element / k_block<Panels>(k) / p.num_projections);
  const double area = work / double(k * p.num_projections);
  // Length of equal blocks of whole tiles that is nearest to `length`.
  const auto block_length = [](Index size, double length, Index tile_length, Index max_length) {
    const Index blocks = std::max<Index>(std::lround(double(size) / length), ceil_div(size, max_length));
    return round_up(ceil_div(size, blocks), tile_length);
  };
  // All columns of a packed B use rows that are packed once.
  constexpr double min_rows = 2 * a_rows<Panels>;
  const double wide = p.b_packed ? area / min_rows : std::sqrt(area);
  const Index cols = block_length(p.n, std::max(wide, area / double(p.m)), tile, max_cols);
  const Index max_rows = p.c.dtype == DType::f32 && p.c.data ? p.m : std::min(p.m, max_rounded_rows);
  const Index rows = block_length(p.m, area / double(std::min(cols, p.n)), Panels::rows, max_rows);
  for (Index j = 0; j < p.n; j += cols)
    for (Index i = 0; i < p.m; i += rows) tasks.push_back({&p, i, std::min(i + rows, p.m), j, std::min(j + cols, p.n)});
}

// Divides a product of few rows into tasks of equal column ranges. Each thread gets the same
// number, because a task has little to pack.
template <class Panels>
void split_columns(const Problem& p, int threads, std::vector<Task>& tasks) {
  constexpr Index floats = 128 * 1024;  // of B, in a task
  const Index blocks = std::max<Index>(1, p.k * p.num_projections * p.n / (floats * threads)) * threads;
  const Index cols = round_up(ceil_div(p.n, blocks), column_tile<Panels>(p));
  for (Index j = 0; j < p.n; j += cols) tasks.push_back({&p, 0, p.m, j, std::min(j + cols, p.n)});
}

// Smaller products take less time than waking the threads.
constexpr double serial_multiplications = 2.5e5;
constexpr double min_task_multiplications = 8e6;  // smaller tasks spend too much on packing
constexpr double min_task_area = 128 * 128;       // the same for tasks of fewer elements of C
constexpr Index tasks_per_thread = 16;            // enough to balance threads of unequal speed
// Area for long sums, if the minimum area would make fewer tasks than this: it packs less, and so
// few tasks must do.
constexpr double long_task_area = 256 * 256;
constexpr Index long_tasks_per_thread = 4;

template <class Panels>
void multiply_all(std::span<const Problem> problems) {
  double total = 0;
  for (const Problem& p : problems) total += multiplications(p);
  const int threads = omp_in_parallel() || total < serial_multiplications ? 1 : omp_get_max_threads();
  thread_local std::vector<Task> tasks;  // its memory is reused
  tasks.clear();
  const double share = total / double(threads);
  const double work = threads == 1 ? total : std::max(share / tasks_per_thread, min_task_multiplications);
  const auto work_of = [&](const Problem& p) {
    const double area =
        std::clamp(share / long_tasks_per_thread / double(std::max<Index>(p.k, 1)), min_task_area, long_task_area);
    return std::min(share, std::max(work, area * double(p.k)));
  };
  for (const Problem& p : problems) {
    if (reads_once<Panels>(p) && p.m > 0)
      split_columns<Panels>(p, threads, tasks);
    else
      split_into_tasks<Panels>(p, work_of(p), tasks);
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

Index panel_columns(DType dtype, Multiply how) {
  return with_tiles(dtype, how, []<class Panels>(std::type_identity<Panels>) { return Panels::cols; });
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

}  // namespace sy::cpu
