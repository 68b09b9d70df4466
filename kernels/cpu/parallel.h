// Parallel loops over fixed chunks. The boundaries of chunks depend on the sizes alone,
// never on the number of threads. So a sum within a chunk, or over the chunks in order, is the same
// on any number of threads.
//
// The comment of every hot loop states the cost of one element, so that a reader can compute its
// share of the roofline:
//   * Bytes that are read from or written to memory, once each. Repeated reads of a row hit a cache
//     and do not count.
//   * FLOPs. A multiply-add counts as two, a division and a root as one, a comparison as zero. exp_
//     is 21, sigmoid_ 23 and tanh_ 25 (vector_math.h).
//
// Below about 5 FLOPs per byte, loops are bound by memory on most machines.
#pragma once

#include <algorithm>
#include <memory>

#include "kernels/tensor.h"

namespace sy::cpu {

// Number of elements of one chunk of a memory-bound operation: enough to be worth waking a thread.
constexpr Index chunk_elements = 16384;

// Number of rows of `width` elements in such a chunk.
inline Index rows_per_chunk(Index width) {
  return std::max<Index>(1, chunk_elements / std::max<Index>(1, width));
}

// Calls body(begin, end) for each chunk of `grain` of the n items. A single chunk needs no parallel
// region. Bodies copy the pointers and numbers of their loops into locals. With a lambda's
// captures, g++ 12 reads summands element by element, with gathers. It also reads each number again
// for every element, because a store might have changed it.
template <class Body>
void for_chunks(Index n, Index grain, const Body& body) {
  const Index chunks = ceil_div(n, grain);
  if (chunks <= 1) {
    if (n > 0) body(Index{0}, n);
    return;
  }
#pragma omp parallel for schedule(static)
  for (Index i = 0; i < chunks; ++i) body(i * grain, std::min(n, (i + 1) * grain));
}

// The sum of term(0) ... term(n - 1). Blocks of terms are summed in f32, which vectorises, and the
// block sums in f64. So a long row is no less exact than a short one.
template <class Term>
[[gnu::always_inline]] inline float sum_of(Index n, const Term& term) {
  constexpr Index block = 2048;
  double total = 0;
  for (Index begin = 0; begin < n; begin += block) {
    const Index end = std::min(n, begin + block);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Index i = begin; i < end; ++i) sum += term(i);
    total += static_cast<double>(sum);
  }
  return static_cast<float>(total);
}

// Memory without initial values.
template <class T>
std::unique_ptr<T[]> scratch(Index n) {
  return std::unique_ptr<T[]>(new T[static_cast<std::size_t>(n)]);
}

// out: [width] += the sum over `rows` rows. body(begin, end, partial) adds its chunk of rows to its
// own partial: [width], which starts at zero. There are at most 64 chunks, whose partial sums are
// added in order.
template <class Sum, class Body>
void sum_over_rows(Index rows, Index width, Sum* out, const Body& body) {
  const Index grain = std::max<Index>({32, rows_per_chunk(width), ceil_div(rows, 64)});
  const Index chunks = ceil_div(rows, grain);
  const auto partials = scratch<Sum>(chunks * width);
  for_chunks(rows, grain, [&](Index begin, Index end) {
    Sum* partial = &partials[begin / grain * width];
    std::fill_n(partial, width, Sum{});
    body(begin, end, partial);
  });
  for_chunks(width, std::max<Index>(64, rows_per_chunk(chunks)), [&](Index begin, Index end) {
    for (Index i = 0; i < chunks; ++i)
      for (Index c = begin; c < end; ++c) out[c] += partials[i * width + c];
  });
}

}  // namespace sy::cpu
