#include "kernels/cpu/embedding.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/parallel.h"

namespace sy::cpu {

void embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y) {
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

// Threads share the columns, and each adds its columns of all tokens in order: a row's sum is in token order,
// and two tokens with one id never meet.
void embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable) {
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

void qk_norm_forward(const QkNorm& desc, ConstView x, ConstView weight, View y, View inverse) {
  const Index all = x.dim(1), hd = x.dim(2), heads = desc.q_heads + desc.k_heads;
  for_runs(x.dim(0), rows_per_run(all * hd), [&](Index begin, Index end) {
    for (Index row = begin * all; row < end * all; ++row) {
      const Index head = row % all;
      const float* const in = x.f32() + row * hd;
      float* const out = y.f32() + row * hd;
      if (head >= heads) {
        std::copy_n(in, hd, out);
        continue;
      }
      const float* const w = weight.f32() + (head < desc.q_heads ? 0 : hd);
      const float squares = sum_of(hd, [=](Index i) { return in[i] * in[i]; });
      const float r = 1 / std::sqrt(squares / static_cast<float>(hd) + desc.eps);
      inverse.f32()[row / all * heads + head] = r;
#pragma omp simd
      for (Index i = 0; i < hd; ++i) out[i] = in[i] * r * w[i];
    }
  });
}

// dx = r (g w) - x r^3 / hd sum(g w x), dw = sum over rows of g x r.
void qk_norm_backward(const QkNorm& desc, ConstView x, ConstView weight, ConstView inverse, View dx, View dweight) {
  const Index all = x.dim(1), hd = x.dim(2), heads = desc.q_heads + desc.k_heads;
  sum_over_rows(x.dim(0), 2 * hd, dweight.f32(), [&](Index begin, Index end, float* partial) {
    for (Index row = begin * all; row < end * all; ++row) {
      const Index head = row % all;
      if (head >= heads) continue;
      const Index of = head < desc.q_heads ? 0 : hd;
      const float* const in = x.f32() + row * hd;
      const float* const w = weight.f32() + of;
      float* const g = dx.f32() + row * hd;
      float* const dw = partial + of;
      const float r = inverse.f32()[row / all * heads + head];
      const float inner = sum_of(hd, [=](Index i) { return g[i] * w[i] * in[i] * r; }) / static_cast<float>(hd);
#pragma omp simd
      for (Index i = 0; i < hd; ++i) {
        const float normal = in[i] * r;
        dw[i] += g[i] * normal;
        g[i] = r * (g[i] * w[i] - normal * inner);
      }
    }
  });
}

void rope(View x, Index heads, ConstView positions, ConstView table, bool inverse) {
  const Index all_heads = x.dim(1), hd = x.dim(2), half = table.dim(1);
  const float sign = inverse ? -1.0f : 1.0f;
  for_runs(x.dim(0), rows_per_run(heads * hd), [&](Index begin, Index end) {
    // The table holds (cos, sin) pairs; a token's rows are split once and used by all its heads.
    const auto cosines = scratch<float>(2 * half);
    float* const cosine = cosines.get();
    float* const sine = cosine + half;
    for (Index t = begin; t < end; ++t) {
      const float* const turn = table.f32() + positions.i32()[t] * half * 2;
      for (Index i = 0; i < half; ++i) {
        cosine[i] = turn[2 * i];
        sine[i] = sign * turn[2 * i + 1];
      }
      for (Index h = 0; h < heads; ++h) {
        float* const a = x.f32() + (t * all_heads + h) * hd;
        float* const b = a + half;
#pragma omp simd
        for (Index i = 0; i < half; ++i) {
          const float u = a[i], v = b[i];
          a[i] = u * cosine[i] - v * sine[i];
          b[i] = u * sine[i] + v * cosine[i];
        }
      }
    }
  });
}

}  // namespace sy::cpu
