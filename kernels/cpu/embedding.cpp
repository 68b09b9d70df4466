// The embedding table.
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

namespace sy::cpu {

// An element of y costs 8 bytes.
void CpuBackend::do_embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y) {
  const Index d = y.dim(1), vocab = table.dim(0);
  for_runs(y.dim(0), rows_per_run(d), [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const Index id = ids.i32()[t] - vocab_begin;
      float* const out = y.f32() + t * d;
      if (id >= 0 && id < vocab)
        std::memcpy(out, table.f32() + id * d, static_cast<std::size_t>(d) * sizeof(float));
      else
        std::fill_n(out, d, 0.0f);
    }
  });
}

// Threads share the columns, and each adds its columns of all tokens in order. A row's sum is therefore in token order,
// and two threads never add to one element. An element of dy costs 12 bytes and 1 FLOP.
void CpuBackend::do_embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable) {
  constexpr Index columns = 64;
  const Index t_all = ids.dim(0), d = dy.dim(1), vocab = dtable.dim(0);
  for_runs(d, t_all * d <= run_elements ? d : columns, [&](Index begin, Index end) {
    for (Index t = 0; t < t_all; ++t) {
      const Index id = ids.i32()[t] - vocab_begin;
      if (id < 0 || id >= vocab) continue;
      const float* const g = dy.f32() + t * d;
      float* const out = dtable.f32() + id * d;
#pragma omp simd
      for (Index i = begin; i < end; ++i) out[i] += g[i];
    }
  });
}

}  // namespace sy::cpu
