// QK-norm and RoPE.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/qk_norm.h"
#include "kernels/ops/rope.h"

namespace sy::cpu {

namespace {

// Mean that QK-norm subtracts from a head; 0 for RMSNorm.
float mean_of(const HeadQkNorm& desc, Index hd, const float* head) {
  if (desc.kind != NormKind::layernorm) return 0;
  return sum_of(hd, [=](Index i) { return head[i]; }) / static_cast<float>(hd);
}

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
std::optional<Rotation> rotation(const HeadQkNorm& desc, ConstView positions, ConstView table, bool inverse) {
  return table ? std::optional<Rotation>(std::in_place, positions, table, inverse, desc.pairs) : std::nullopt;
}

}  // namespace

// An element costs 8 bytes and 5 FLOPs, 7 for LayerNorm, and 3 FLOPs more if it is rotated.
void execute(CpuDevice&, const ops::HeadQkNormForward& op) {
  const Index all = op.x.dim(1), hd = op.x.dim(2), heads = op.desc.q_heads + op.desc.k_heads;
  for_chunks(op.x.dim(0), rows_per_chunk(all * hd), [&](Index begin, Index end) {
    const float offset = op.desc.offset;
    Floats inputs(op.x, hd), weights(op.weight, op.weight.elements());
    const float* const all_weights = weights.at(0);
    Results outputs(op.y, hd);
    auto rotator = rotation(op.desc, op.positions, op.table, false);
    for (Index row = begin * all; row < end * all; ++row) {
      const Index head = row % all;
      if (head == 0 && rotator) rotator->of_token(row / all);
      if (head >= heads) {
        copy_elements(op.x, row * hd, hd, op.y, row * hd);
        continue;
      }
      const float* const in = inputs.at(row * hd);
      float* const out = outputs.begin(row * hd);
      const float* const w = all_weights + op.desc.weight_of(head) * hd;
      const float mean = mean_of(op.desc, hd, in);
      const float squares = sum_of(hd, [=](Index i) { return (in[i] - mean) * (in[i] - mean); });
      const float r = 1 / std::sqrt(squares / static_cast<float>(hd) + op.desc.eps);
      op.inverse.f32()[row / all * heads + head] = r;
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
void execute(CpuDevice&, const ops::HeadQkNormBackward& op) {
  const Index all = op.x.dim(1), hd = op.x.dim(2), heads = op.desc.q_heads + op.desc.k_heads;
  sum_over_rows(op.x.dim(0), op.desc.weights() * hd, op.dweight.f32(), [&](Index begin, Index end, float* partial) {
    const float offset = op.desc.offset;
    Floats inputs(op.x, hd), gradients(op.dy, hd), weights(op.weight, op.weight.elements());
    const float* const all_weights = weights.at(0);
    Results outputs(op.dx, hd);
    auto rotator = rotation(op.desc, op.positions, op.table, true);
    for (Index row = begin * all; row < end * all; ++row) {
      const Index head = row % all;
      if (head == 0 && rotator) rotator->of_token(row / all);
      if (head >= heads) {
        copy_elements(op.dy, row * hd, hd, op.dx, row * hd);
        continue;
      }
      const Index of = op.desc.weight_of(head) * hd;
      const float* const in = inputs.at(row * hd);
      const float* const w = all_weights + of;
      float* const g = outputs.begin(row * hd);
      float* const dw = partial + of;
      std::copy_n(gradients.at(row * hd), hd, g);
      if (rotator) rotator->rotate(g);
      const float r = op.inverse.f32()[row / all * heads + head];
      const float mean = mean_of(op.desc, hd, in), width = static_cast<float>(hd);
      const float mean_dn =
          op.desc.kind == NormKind::layernorm ? sum_of(hd, [=](Index i) { return g[i] * (offset + w[i]); }) / width : 0;
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
void execute(CpuDevice&, const ops::Rope& op) {
  const Index all_heads = op.x.dim(1), hd = op.x.dim(2);
  for_chunks(op.x.dim(0), rows_per_chunk(op.heads * hd), [&](Index begin, Index end) {
    Rotation rotator(op.positions, op.table, op.inverse, op.pairs);
    Results vectors(op.x, 2 * op.table.dim(1));
    for (Index t = begin; t < end; ++t) {
      rotator.of_token(t);
      for (Index h = 0; h < op.heads; ++h) rotator.rotate(vectors.update((t * all_heads + h) * hd));
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
std::array<ColumnRange, 2> column_ranges(const ProjectionQkNorm& d) {
  return {{{0, d.queries, static_cast<float>(d.all_queries)}, {d.queries, d.keys, static_cast<float>(d.all_keys)}}};
}

}  // namespace

// An element of queries and keys costs 8 bytes and 2 FLOPs.
void execute(CpuDevice&, const ops::ProjectionQkNormSums& op) {
  const Index row = op.x.dim(1);
  for_chunks(op.x.dim(0), rows_per_chunk(row), [&](Index begin, Index end) {
    Floats left(op.x, row), right(op.y, row);
    for (Index t = begin; t < end; ++t)
      for (const int of : {0, 1}) {
        const ColumnRange columns = column_ranges(op.desc)[of];
        const float* const a = left.at(t * row + columns.begin, columns.size);
        const float* const b = right.at(t * row + columns.begin, columns.size);
        op.sums.f32()[2 * t + of] = sum_of(columns.size, [=](Index i) { return a[i] * b[i]; });
      }
  });
}

// An element costs 8 bytes and 2 FLOPs.
void execute(CpuDevice&, const ops::ProjectionQkNormForward& op) {
  const Index row = op.x.dim(1), normed = op.desc.queries + op.desc.keys;
  for_chunks(op.x.dim(0), rows_per_chunk(row), [&](Index begin, Index end) {
    const float offset = op.desc.offset;
    Floats inputs(op.x, row), weights(op.weight, normed);
    Results outputs(op.y, row);
    for (Index t = begin; t < end; ++t) {
      for (const int of : {0, 1}) {
        const ColumnRange columns = column_ranges(op.desc)[of];
        const float* const in = inputs.at(t * row + columns.begin, columns.size);
        const float* const w = weights.at(columns.begin, columns.size);
        float* const out = outputs.begin(t * row + columns.begin, columns.size);
        const float r = 1 / std::sqrt(op.squares.f32()[2 * t + of] / columns.all + op.desc.eps);
#pragma omp simd
        for (Index i = 0; i < columns.size; ++i) out[i] = in[i] * r * (offset + w[i]);
      }
      copy_elements(op.x, t * row + normed, row - normed, op.y, t * row + normed);
    }
  });
}

// With w the weight with its offset:
//   dx = r (dy w - x r products / all),   dw = sum over rows of dy x r
// An element costs 16 bytes and 8 FLOPs.
void execute(CpuDevice&, const ops::ProjectionQkNormBackward& op) {
  const Index row = op.x.dim(1), normed = op.desc.queries + op.desc.keys;
  sum_over_rows(op.x.dim(0), normed, op.dweight.f32(), [&](Index begin, Index end, float* partial) {
    const float offset = op.desc.offset;
    Floats inputs(op.x, row), gradients(op.dy, row), weights(op.weight, normed);
    Results outputs(op.dx, row);
    for (Index t = begin; t < end; ++t) {
      for (const int of : {0, 1}) {
        const ColumnRange columns = column_ranges(op.desc)[of];
        const Index at = t * row + columns.begin;
        const float* const in = inputs.at(at, columns.size);
        const float* const g = gradients.at(at, columns.size);
        const float* const w = weights.at(columns.begin, columns.size);
        float* const out = outputs.begin(at, columns.size);
        float* const dw = partial + columns.begin;
        const float r = 1 / std::sqrt(op.squares.f32()[2 * t + of] / columns.all + op.desc.eps);
        const float inner = op.products.f32()[2 * t + of] / columns.all;
#pragma omp simd
        for (Index i = 0; i < columns.size; ++i) {
          const float normal = in[i] * r;
          dw[i] += g[i] * normal;
          out[i] = r * (g[i] * (offset + w[i]) - normal * inner);
        }
      }
      copy_elements(op.dy, t * row + normed, row - normed, op.dx, t * row + normed);
    }
  });
}

}  // namespace sy::cpu
