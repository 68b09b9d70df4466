// Queries and keys normalised by head and rotated, in one pass each way.
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.h"

namespace sy::cuda {

namespace {

constexpr int warps_of_block = 8;
constexpr int most_of_lane = 8;  // elements of a head that a lane keeps: heads of up to 256

struct Sizes {
  Index rows;  // T * all_heads
  Index all_heads, q_heads, k_heads, hd, half;
};

// cos and sin of a token's pair i.
struct Turn {
  float cosine, sine;
};
__device__ Turn turn_of(const Sizes& s, In<std::int32_t> positions, In<float> table, Index t, Index i) {
  const Index at = (positions[t] * s.half + i) * 2;
  return {table[at], table[at + 1]};
}

// A warp for each head of each token. x, y: [T, all_heads, hd]; weight: [2, hd]; inverse: [T, q_heads + k_heads]
template <class T>
__global__ void normalize(Sizes s, float eps, In<T> x, In<T> weight, In<std::int32_t> positions, In<float> table,
                          Out<T> y, Out<float> inverse) {
  const Index row = Index{blockIdx.x} * warps_of_block + threadIdx.x / warp_size;
  const int lane = threadIdx.x % warp_size;
  if (row >= s.rows) return;
  const Index t = row / s.all_heads, head = row % s.all_heads, at = row * s.hd, normed = s.q_heads + s.k_heads;
  if (head >= normed) {
    for (Index i = lane; i < s.hd; i += warp_size) y[at + i] = x[at + i];
    return;
  }
  const Index of = head < s.q_heads ? 0 : s.hd;  // its weights
  float squares = 0;
  for (Index i = lane; i < s.hd; i += warp_size) squares += to_float(x[at + i]) * to_float(x[at + i]);
  const float r = 1 / sqrtf(warp_sum(squares) / static_cast<float>(s.hd) + eps);
  if (lane == 0) inverse[t * normed + head] = r;
  const auto value = [&](Index i) { return to_float(x[at + i]) * r * to_float(weight[of + i]); };
  for (Index i = lane; i < s.hd; i += warp_size) {
    float v = value(i);
    if (table && i < 2 * s.half) {
      const Index pair = i < s.half ? i : i - s.half;
      const Turn turn = turn_of(s, positions, table, t, pair);
      v = i < s.half ? v * turn.cosine - value(i + s.half) * turn.sine : v * turn.cosine + value(pair) * turn.sine;
    }
    y[at + i] = from_float<T>(v);
  }
}

// With g = dy turned back: dx = r (g w) - x r^3 / hd sum(g w x), dw = sum over rows of g x r. Each warp takes every so many
// rows, and leaves the sums of g x r for queries and keys in partial: [2, warps, hd].
template <class T>
__global__ void normalize_gradient(Sizes s, In<T> dy, In<T> x, In<T> weight, In<float> inverse,
                                   In<std::int32_t> positions, In<float> table, Out<T> dx, Out<float> partial) {
  const Index warp = Index{blockIdx.x} * warps_of_block + threadIdx.x / warp_size;
  const Index warps = Index{gridDim.x} * warps_of_block, normed = s.q_heads + s.k_heads;
  const int lane = threadIdx.x % warp_size;
  float sums[2][most_of_lane] = {};
  for (Index row = warp; row < s.rows; row += warps) {
    const Index t = row / s.all_heads, head = row % s.all_heads, at = row * s.hd;
    if (head >= normed) {
      for (Index i = lane; i < s.hd; i += warp_size) dx[at + i] = dy[at + i];
      continue;
    }
    const bool key = head >= s.q_heads;
    const float r = inverse[t * normed + head];
    float g[most_of_lane], inner = 0;
#pragma unroll
    for (int n = 0; n < most_of_lane; ++n) {
      const Index i = lane + n * warp_size;
      g[n] = 0;
      if (i >= s.hd) continue;
      g[n] = to_float(dy[at + i]);
      if (table && i < 2 * s.half) {
        const Index pair = i < s.half ? i : i - s.half;
        const Turn turn = turn_of(s, positions, table, t, pair);
        g[n] = i < s.half ? g[n] * turn.cosine + to_float(dy[at + i + s.half]) * turn.sine
                          : g[n] * turn.cosine - to_float(dy[at + pair]) * turn.sine;
      }
      const float normal = to_float(x[at + i]) * r, part = g[n] * normal;
      inner += part * to_float(weight[(key ? s.hd : 0) + i]);
      sums[0][n] += key ? 0.0f : part;
      sums[1][n] += key ? part : 0.0f;
    }
    inner = warp_sum(inner) / static_cast<float>(s.hd);
#pragma unroll
    for (int n = 0; n < most_of_lane; ++n) {
      const Index i = lane + n * warp_size;
      if (i >= s.hd) continue;
      const float normal = to_float(x[at + i]) * r;
      dx[at + i] = from_float<T>(r * (g[n] * to_float(weight[(key ? s.hd : 0) + i]) - normal * inner));
    }
  }
#pragma unroll
  for (int n = 0; n < most_of_lane; ++n) {
    const Index i = lane + n * warp_size;
    if (i >= s.hd) continue;
    partial[warp * s.hd + i] = sums[0][n];
    partial[(warps + warp) * s.hd + i] = sums[1][n];
  }
}

Sizes sizes_of(const QkNorm& desc, ConstView x, ConstView table) {
  return {x.dim(0) * x.dim(1), x.dim(1), desc.q_heads, desc.k_heads, x.dim(2), table ? table.dim(1) : 0};
}

}  // namespace

void qk_norm_forward(Context& context, const QkNorm& desc, ConstView x, ConstView weight, ConstView positions,
                     ConstView table, View y, View inverse) {
  const Sizes s = sizes_of(desc, x, table);
  with_type(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch(context, {.x = blocks_of(s.rows, warps_of_block), .threads = warps_of_block * warp_size}, normalize<T>, s,
           desc.eps, in<T>(x), in<T>(weight), in<std::int32_t>(positions), in<float>(table), out<T>(y),
           out<float>(inverse));
  });
}

void qk_norm_backward(Context& context, const QkNorm& desc, ConstView dy, ConstView x, ConstView weight,
                      ConstView inverse, ConstView positions, ConstView table, View dx, View dweight) {
  const Sizes s = sizes_of(desc, x, table);
  if (s.hd > most_of_lane * warp_size)
    bad_input("model.head_dim = {}: model.qk_norm takes up to {} on a GPU: set it to that or less", s.hd,
              most_of_lane * warp_size);
  const Index blocks = std::min<Index>(blocks_of(s.rows, warps_of_block), 264), warps = blocks * warps_of_block;
  Workspace workspace(context);
  const View partial = workspace.take({2 * warps, s.hd}, DType::f32);
  with_type(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch(context, {.x = blocks, .threads = warps_of_block * warp_size}, normalize_gradient<T>, s, in<T>(dy), in<T>(x),
           in<T>(weight), in<float>(inverse), in<std::int32_t>(positions), in<float>(table), out<T>(dx),
           out<float>(partial));
  });
  for (Index of : {0, 1})
    add_column_sums(context, workspace, partial.rows(of * warps, warps), dweight.rows(of, 1).reshape({s.hd}));
}

}  // namespace sy::cuda
