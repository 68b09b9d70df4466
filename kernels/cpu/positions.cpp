// QK-norm and RoPE.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace sy::cpu {

namespace {

// Mean that QK-norm subtracts from a head; 0 for RMSNorm.
float mean_of(const QkNorm& desc, Index hd, const float* head) {
  if (desc.kind != NormKind::layernorm) return 0;
  return sum_of(hd, [=](Index i) { return head[i]; }) / static_cast<float>(hd);
}

}  // namespace

namespace {

// Rotates heads, one at a time.
class Rotation {
 public:
  Rotation(ConstView positions, ConstView table, bool inverse, RopePairs pairs)
      : positions_(positions.i32()),
        table_(table.f32()),
        half_(table.dim(1)),
        sign_(inverse ? -1.0f : 1.0f),
        pairs_(pairs),
        cosine_(scratch<float>(2 * half_)) {}

  // Sets the token of the heads that are rotated next. The table holds (cos, sin) pairs, which are
  // split once for all heads of a token.
  void of_token(Index t) {
    const float* const token_table = table_ + positions_[t] * half_ * 2;
    float* const cosine = cosine_.get();
    float* const sine = cosine + half_;
    for (Index i = 0; i < half_; ++i) {
      cosine[i] = token_table[2 * i];
      sine[i] = sign_ * token_table[2 * i + 1];
    }
  }

  void rotate(float* a) const {
    const Index half = half_;
    const float* const cosine = cosine_.get();
    const float* const sine = cosine + half;
    if (pairs_ == RopePairs::interleaved) {
#pragma omp simd
      for (Index i = 0; i < half; ++i) {
        const float u = a[2 * i], v = a[2 * i + 1];
        a[2 * i] = u * cosine[i] - v * sine[i];
        a[2 * i + 1] = u * sine[i] + v * cosine[i];
      }
      return;
    }
    float* const b = a + half;
#pragma omp simd
    for (Index i = 0; i < half; ++i) {
      const float u = a[i], v = b[i];
      a[i] = u * cosine[i] - v * sine[i];
      b[i] = u * sine[i] + v * cosine[i];
    }
  }

 private:
  const std::int32_t* positions_;
  const float* table_;
  Index half_;
  float sign_;
  RopePairs pairs_;
  std::unique_ptr<float[]> cosine_;  // followed by the sines
};

// Rotation of QK-norm; empty if there is no table.
std::optional<Rotation> rotation(const QkNorm& desc, ConstView positions, ConstView table, bool inverse) {
  return table ? std::optional<Rotation>(std::in_place, positions, table, inverse, desc.pairs) : std::nullopt;
}

}  // namespace

// An element costs 8 bytes and 5 FLOPs, 7 for LayerNorm, and 3 FLOPs more if it is rotated.
void CpuBackend::do_qk_norm_forward(const QkNorm& desc, ConstView x, ConstView weight, ConstView positions,
                                    ConstView table, View y, View inverse) {
  const Index all = x.dim(1), hd = x.dim(2), heads = desc.q_heads + desc.k_heads;
  for_chunks(x.dim(0), rows_per_chunk(all * hd), [&](Index begin, Index end) {
    const float offset = desc.offset;
    Floats inputs(x, hd), weights(weight, weight.elements());
    const float* const all_weights = weights.at(0);
    Results outputs(y, hd);
    auto rotator = rotation(desc, positions, table, false);
    for (Index row = begin * all; row < end * all; ++row) {
      const Index head = row % all;
      if (head == 0 && rotator) rotator->of_token(row / all);
      if (head >= heads) {
        copy_elements(x, row * hd, hd, y, row * hd);
        continue;
      }
      const float* const in = inputs.at(row * hd);
      float* const out = outputs.begin(row * hd);
      const float* const w = all_weights + desc.weight_of(head) * hd;
      const float mean = mean_of(desc, hd, in);
      const float squares = sum_of(hd, [=](Index i) { return (in[i] - mean) * (in[i] - mean); });
      const float r = 1 / std::sqrt(squares / static_cast<float>(hd) + desc.eps);
      inverse.f32()[row / all * heads + head] = r;
#pragma omp simd
      for (Index i = 0; i < hd; ++i) out[i] = (in[i] - mean) * r * (offset + w[i]);
      if (rotator) rotator->rotate(out);
    }
  });
}

// With g = dy rotated back, w the weight with its offset and n = (x - mean) r:
//   dx = r (g w - mean(g w) - n mean(g w n)), without mean(g w) for RMSNorm
//   dw = sum over rows of g n
// An element costs 12 bytes and 13 FLOPs, 17 for LayerNorm, and 3 FLOPs more if it is rotated.
void CpuBackend::do_qk_norm_backward(const QkNorm& desc, ConstView dy, ConstView x, ConstView weight, ConstView inverse,
                                     ConstView positions, ConstView table, View dx, View dweight) {
  const Index all = x.dim(1), hd = x.dim(2), heads = desc.q_heads + desc.k_heads;
  sum_over_rows(x.dim(0), desc.weights() * hd, dweight.f32(), [&](Index begin, Index end, float* partial) {
    const float offset = desc.offset;
    Floats inputs(x, hd), gradients(dy, hd), weights(weight, weight.elements());
    const float* const all_weights = weights.at(0);
    Results outputs(dx, hd);
    auto rotator = rotation(desc, positions, table, true);
    for (Index row = begin * all; row < end * all; ++row) {
      const Index head = row % all;
      if (head == 0 && rotator) rotator->of_token(row / all);
      if (head >= heads) {
        copy_elements(dy, row * hd, hd, dx, row * hd);
        continue;
      }
      const Index of = desc.weight_of(head) * hd;
      const float* const in = inputs.at(row * hd);
      const float* const w = all_weights + of;
      float* const g = outputs.begin(row * hd);
      float* const dw = partial + of;
      std::copy_n(gradients.at(row * hd), hd, g);
      if (rotator) rotator->rotate(g);
      const float r = inverse.f32()[row / all * heads + head];
      const float mean = mean_of(desc, hd, in), width = static_cast<float>(hd);
      const float mean_dn =
          desc.kind == NormKind::layernorm ? sum_of(hd, [=](Index i) { return g[i] * (offset + w[i]); }) / width : 0;
      const float inner = sum_of(hd, [=](Index i) { return g[i] * (offset + w[i]) * (in[i] - mean) * r; }) / width;
#pragma omp simd
      for (Index i = 0; i < hd; ++i) {
        const float normal = (in[i] - mean) * r;
        dw[i] += g[i] * normal;
        g[i] = r * (g[i] * (offset + w[i]) - (normal * inner + mean_dn));
      }
    }
  });
}

// An element that is rotated costs 8 bytes and 3 FLOPs.
void CpuBackend::do_rope(View x, Index heads, ConstView positions, ConstView table, bool inverse, RopePairs pairs) {
  const Index all_heads = x.dim(1), hd = x.dim(2);
  for_chunks(x.dim(0), rows_per_chunk(heads * hd), [&](Index begin, Index end) {
    Rotation rotator(positions, table, inverse, pairs);
    Results vectors(x, 2 * table.dim(1));
    for (Index t = begin; t < end; ++t) {
      rotator.of_token(t);
      for (Index h = 0; h < heads; ++h) rotator.rotate(vectors.update((t * all_heads + h) * hd));
    }
  });
}

namespace {

// Queries (0) or keys (1) of a row: first column, number of columns, and divisor of the mean
// square.
struct ColumnRange {
  Index begin, size;
  float all;
};
std::array<ColumnRange, 2> column_ranges(const WholeQkNorm& d) {
  return {{{0, d.queries, static_cast<float>(d.all_queries)}, {d.queries, d.keys, static_cast<float>(d.all_keys)}}};
}

}  // namespace

// An element of queries and keys costs 8 bytes and 2 FLOPs.
void CpuBackend::do_whole_qk_norm_sums(const WholeQkNorm& desc, ConstView x, ConstView y, View sums) {
  const Index row = x.dim(1);
  for_chunks(x.dim(0), rows_per_chunk(row), [&](Index begin, Index end) {
    Floats left(x, row), right(y, row);
    for (Index t = begin; t < end; ++t)
      for (const int of : {0, 1}) {
        const ColumnRange columns = column_ranges(desc)[of];
        const float* const a = left.at(t * row + columns.begin, columns.size);
        const float* const b = right.at(t * row + columns.begin, columns.size);
        sums.f32()[2 * t + of] = sum_of(columns.size, [=](Index i) { return a[i] * b[i]; });
      }
  });
}

// An element costs 8 bytes and 2 FLOPs.
void CpuBackend::do_whole_qk_norm_forward(const WholeQkNorm& desc, ConstView x, ConstView weight, ConstView squares,
                                          View y) {
  const Index row = x.dim(1), normed = desc.queries + desc.keys;
  for_chunks(x.dim(0), rows_per_chunk(row), [&](Index begin, Index end) {
    const float offset = desc.offset;
    Floats inputs(x, row), weights(weight, normed);
    Results outputs(y, row);
    for (Index t = begin; t < end; ++t) {
      for (const int of : {0, 1}) {
        const ColumnRange columns = column_ranges(desc)[of];
        const float* const in = inputs.at(t * row + columns.begin, columns.size);
        const float* const w = weights.at(columns.begin, columns.size);
        float* const out = outputs.begin(t * row + columns.begin, columns.size);
        const float r = 1 / std::sqrt(squares.f32()[2 * t + of] / columns.all + desc.eps);
#pragma omp simd
        for (Index i = 0; i < columns.size; ++i) out[i] = in[i] * r * (offset + w[i]);
      }
      copy_elements(x, t * row + normed, row - normed, y, t * row + normed);
    }
  });
}

// With w the weight with its offset:
//   dx = r (dy w - x r products / all),   dw = sum over rows of dy x r
// An element costs 16 bytes and 8 FLOPs.
void CpuBackend::do_whole_qk_norm_backward(const WholeQkNorm& desc, ConstView dy, ConstView x, ConstView weight,
                                           ConstView squares, ConstView products, View dx, View dweight) {
  const Index row = x.dim(1), normed = desc.queries + desc.keys;
  sum_over_rows(x.dim(0), normed, dweight.f32(), [&](Index begin, Index end, float* partial) {
    const float offset = desc.offset;
    Floats inputs(x, row), gradients(dy, row), weights(weight, normed);
    Results outputs(dx, row);
    for (Index t = begin; t < end; ++t) {
      for (const int of : {0, 1}) {
        const ColumnRange columns = column_ranges(desc)[of];
        const Index at = t * row + columns.begin;
        const float* const in = inputs.at(at, columns.size);
        const float* const g = gradients.at(at, columns.size);
        const float* const w = weights.at(columns.begin, columns.size);
        float* const out = outputs.begin(at, columns.size);
        float* const dw = partial + columns.begin;
        const float r = 1 / std::sqrt(squares.f32()[2 * t + of] / columns.all + desc.eps);
        const float inner = products.f32()[2 * t + of] / columns.all;
#pragma omp simd
        for (Index i = 0; i < columns.size; ++i) {
          const float normal = in[i] * r;
          dw[i] += g[i] * normal;
          out[i] = r * (g[i] * (offset + w[i]) - normal * inner);
        }
      }
      copy_elements(dy, t * row + normed, row - normed, dx, t * row + normed);
    }
  });
}

}  // namespace sy::cpu
