// Embedding: table look-up and its gradient.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace sy::cpu {

// An element of y costs 8 bytes.
void CpuBackend::do_embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y) {
  const Index d = y.dim(1), vocab = table.dim(0);
  for_chunks(y.dim(0), rows_per_chunk(d), [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const Index id = ids.i32()[t] - vocab_begin;
      if (id >= 0 && id < vocab)
        copy_elements(table, id * d, d, y, t * d);
      else
        clear_elements(y, t * d, d);
    }
  });
}

// Threads share the columns, and each adds its columns of all tokens in order. So the sum of a row
// has token order, and two threads never add to one element. An element of dy costs 12 bytes and 1
// FLOP.
void CpuBackend::do_embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable) {
  constexpr Index columns = 64;
  const Index t_all = ids.dim(0), d = dy.dim(1), vocab = dtable.dim(0);
  for_chunks(d, t_all * d <= chunk_elements ? d : columns, [&](Index begin, Index end) {
    const Index n = end - begin;
    Floats gradients(dy, n);
    for (Index t = 0; t < t_all; ++t) {
      const Index id = ids.i32()[t] - vocab_begin;
      if (id < 0 || id >= vocab) continue;
      const float* const g = gradients.at(t * d + begin);
      float* const out = dtable.f32() + id * d + begin;
#pragma omp simd
      for (Index i = 0; i < n; ++i) out[i] += g[i];
    }
  });
}

}  // namespace sy::cpu
