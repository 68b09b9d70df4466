// Element-wise operations.
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/elementwise.h"

namespace sy::cpu {

// An element costs 4 bytes.
void execute(CpuDevice&, const ops::Fill& op) {
  if (op.value == 0)
    for_chunks(op.x.size_bytes(), 4 * chunk_elements, [&](Index begin, Index end) {
      std::memset(op.x.bytes() + begin, 0, static_cast<std::size_t>(end - begin));
    });
  else
    for_chunks(op.x.elements(), chunk_elements,
               [&](Index begin, Index end) { std::fill(op.x.f32() + begin, op.x.f32() + end, op.value); });
}

// A byte of x is read, and a byte of y is written.
void execute(CpuDevice&, const ops::Copy& op) {
  for_chunks(op.x.size_bytes(), 4 * chunk_elements, [&](Index begin, Index end) {
    std::memcpy(op.y.bytes() + begin, op.x.bytes() + begin, static_cast<std::size_t>(end - begin));
  });
}

// An element costs 6 bytes.
void execute(CpuDevice&, const ops::Convert& op) {
  for_chunks(op.y.elements(), chunk_elements, [&](Index begin, Index end) {
    if (op.x.dtype() == DType::bf16)
      widen(op.x.as<Bf16>() + begin, end - begin, op.y.f32() + begin);
    else
      round(op.x.f32() + begin, end - begin, op.y.as<Bf16>() + begin);
  });
}

// An element costs 12 bytes and 1 FLOP.
void execute(CpuDevice&, const ops::Add& op) {
  for_chunks(op.y.elements(), chunk_elements, [&](Index begin, Index end) {
    Floats xs(op.x, slice_elements);
    Results ys(op.y, slice_elements);
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
void execute(CpuDevice&, const ops::Scale& op) {
  const float factor = op.factor;
  for_chunks(op.x.elements(), chunk_elements, [&](Index begin, Index end) {
    Results xs(op.x, slice_elements);
    for (Index at = begin; at < end; at += slice_elements) {
      const Index n = std::min(slice_elements, end - at);
      float* const out = xs.update(at, n);
#pragma omp simd
      for (Index i = 0; i < n; ++i) out[i] *= factor;
    }
  });
}

// An element costs 4 bytes and 2 FLOPs, in f64.
void execute(CpuDevice&, const ops::SumSquares& op) {
  const Index n = op.x.elements(), grain = chunk_elements;
  std::vector<double> sums(ceil_div(n, grain));
  for_chunks(n, grain, [&](Index begin, Index end) {
    const float* const in = op.x.f32();
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Index i = begin; i < end; ++i) sum += static_cast<double>(in[i]) * static_cast<double>(in[i]);
    sums[begin / grain] = sum;
  });
  double total = 0;
  for (double sum : sums) total += sum;
  *op.out.as<double>() += total;
}

// An element costs 4 bytes, 2 in bf16, and no FLOP.
void execute(CpuDevice&, const ops::BitSum& op) {
  std::uint32_t total = 0;
  for_chunks(op.x.elements(), chunk_elements, [&](Index begin, Index end) {
    const std::uint32_t sum = bit_sum(op.x, begin, end);
#pragma omp atomic
    total += sum;
  });
  add_bit_sum(total, op.out);
}

}  // namespace sy::cpu
