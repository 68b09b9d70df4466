// Element-wise operations.
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace sy::cpu {

// An element costs 4 bytes.
void CpuBackend::do_fill(View x, float value) {
  if (value == 0)
    for_chunks(x.size_bytes(), 4 * chunk_elements, [&](Index begin, Index end) {
      std::memset(x.bytes() + begin, 0, static_cast<std::size_t>(end - begin));
    });
  else
    for_chunks(x.elements(), chunk_elements,
               [&](Index begin, Index end) { std::fill(x.f32() + begin, x.f32() + end, value); });
}

// A byte of x is read, and a byte of y is written.
void CpuBackend::do_copy(ConstView x, View y) {
  for_chunks(x.size_bytes(), 4 * chunk_elements, [&](Index begin, Index end) {
    std::memcpy(y.bytes() + begin, x.bytes() + begin, static_cast<std::size_t>(end - begin));
  });
}

// An element costs 6 bytes.
void CpuBackend::do_convert(ConstView x, View y) {
  for_chunks(y.elements(), chunk_elements, [&](Index begin, Index end) {
    if (x.dtype() == DType::bf16)
      widen(x.as<Bf16>() + begin, end - begin, y.f32() + begin);
    else
      round(x.f32() + begin, end - begin, y.as<Bf16>() + begin);
  });
}

// An element costs 12 bytes and 1 FLOP.
void CpuBackend::do_add(ConstView x, View y) {
  for_chunks(y.elements(), chunk_elements, [&](Index begin, Index end) {
    Floats xs(x, slice_elements);
    Results ys(y, slice_elements);
    for (Index at = begin; at < end; at += slice_elements) {
      const Index n = std::min(slice_elements, end - at);
      const float* const in = xs.at(at, n);
      float* const out = ys.update(at, n);
#pragma omp simd
      for (Index i = 0; i < n; ++i) out[i] += in[i];
    }
  });
}

// An element costs 8 bytes and 1 FLOP.
void CpuBackend::do_scale(View x, float factor) {
  for_chunks(x.elements(), chunk_elements, [&](Index begin, Index end) {
    Results xs(x, slice_elements);
    for (Index at = begin; at < end; at += slice_elements) {
      const Index n = std::min(slice_elements, end - at);
      float* const out = xs.update(at, n);
#pragma omp simd
      for (Index i = 0; i < n; ++i) out[i] *= factor;
    }
  });
}

// An element costs 4 bytes and 2 FLOPs, in f64.
void CpuBackend::do_sum_squares(ConstView x, View out) {
  const Index n = x.elements(), grain = chunk_elements;
  std::vector<double> sums(ceil_div(n, grain));
  for_chunks(n, grain, [&](Index begin, Index end) {
    const float* const in = x.f32();
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Index i = begin; i < end; ++i) sum += static_cast<double>(in[i]) * static_cast<double>(in[i]);
    sums[begin / grain] = sum;
  });
  double total = 0;
  for (double sum : sums) total += sum;
  *out.as<double>() += total;
}

}  // namespace sy::cpu
