// Work in fixed runs. Where a run begins depends on the sizes alone, never on the number of threads. What is summed
// within a run, or over the runs in their order, is therefore the same on any number of threads.
//
// The comment of every hot loop says what one element costs, so that its share of the roof can be checked by reading:
// the bytes that are read from or written to memory, once each, and the FLOPs. A multiply-add is two FLOPs, a division
// and a root are one, and a comparison is none; exp_ is 21, sigmoid_ 23 and tanh_ 25 (vector_math.h). What a row reads
// again comes from a cache and is not counted. Below about 5 FLOPs a byte, loops wait for memory on most machines.
#pragma once

#include <algorithm>
#include <memory>

#include "kernels/tensor.h"

namespace sy::cpu {

// How many elements one run of a memory-bound operation should hold: enough to be worth waking a thread for.
constexpr Index run_elements = 16384;

// How many rows of `width` elements make such a run.
inline Index rows_per_run(Index width) {
  return std::max<Index>(1, run_elements / std::max<Index>(1, width));
}

// Calls body(begin, end) for each run of `grain` of the n items. A single run costs no parallel region. Bodies copy the
// pointers and numbers that their loops use into locals: where they are a lambda's captures, g++ 12 reads what a loop sums element
// by element, with gathers, and reads the number again for every element, since a store might have changed it.
template <class Body>
void for_runs(Index n, Index grain, const Body& body) {
  const Index runs = ceil_div(n, grain);
  if (runs <= 1) {
    if (n > 0) body(Index{0}, n);
    return;
  }
#pragma omp parallel for schedule(static)
  for (Index i = 0; i < runs; ++i) body(i * grain, std::min(n, (i + 1) * grain));
}

// The sum of term(0) ... term(n - 1). Blocks of terms are summed in f32, which vectorises, and the blocks' sums in f64,
// so that a long row is no less exact than a short one.
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

// out: [width] += the sum over `rows` rows. body(begin, end, partial) adds its run of rows to a partial: [width] of its
// own, which starts at zero. The rows are cut into at most 64 runs, whose partial sums are added in order.
template <class Body>
void sum_over_rows(Index rows, Index width, float* out, const Body& body) {
  const Index grain = std::max<Index>({32, rows_per_run(width), ceil_div(rows, 64)});
  const Index runs = ceil_div(rows, grain);
  const auto partials = scratch<float>(runs * width);
  for_runs(rows, grain, [&](Index begin, Index end) {
    float* partial = &partials[begin / grain * width];
    std::fill_n(partial, width, 0.0f);
    body(begin, end, partial);
  });
  for_runs(width, std::max<Index>(64, rows_per_run(runs)), [&](Index begin, Index end) {
    for (Index i = 0; i < runs; ++i)
      for (Index c = begin; c < end; ++c) out[c] += partials[i * width + c];
  });
}

}  // namespace sy::cpu
