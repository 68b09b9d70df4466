// Embedding: table look-up and its gradient.
#include "kernels/ops/embedding.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace sy::cpu {

// An element of y costs 8 bytes.
void execute(CpuDevice&, const ops::EmbeddingForward& op) {
  const Index d = op.y.dim(1), vocab = op.table.dim(0);
  for_chunks(op.y.dim(0), rows_per_chunk(d), [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const Index id = op.ids.i32()[t] - op.vocab_begin;
      if (id >= 0 && id < vocab)
        copy_elements(op.table, id * d, d, op.y, t * d);
      else
        clear_elements(op.y, t * d, d);
    }
  });
}

// Threads share the columns, and each adds its columns of all tokens in order. So the sum of a row
// has token order, and two threads never add to one element. An element of dy costs 12 bytes and 1
// FLOP.
void execute(CpuDevice&, const ops::EmbeddingBackward& op) {
  constexpr Index columns = 64;
  const Index t_all = op.ids.dim(0), d = op.dy.dim(1), vocab = op.dtable.dim(0);
  for_chunks(d, t_all * d <= chunk_elements ? d : columns, [&](Index begin, Index end) {
    const Index n = end - begin;
    Floats gradients(op.dy, n);
    for (Index t = 0; t < t_all; ++t) {
      const Index id = op.ids.i32()[t] - op.vocab_begin;
      if (id < 0 || id >= vocab) continue;
      const float* const g = gradients.at(t * d + begin);
      float* const out = op.dtable.f32() + id * d + begin;
#pragma omp simd
      for (Index i = 0; i < n; ++i) out[i] += g[i];
    }
  });
}

}  // namespace sy::cpu
