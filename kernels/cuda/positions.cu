// Rotary positions, and queries and keys normalised by head and rotated in one pass each way.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/rows.h"

namespace sy::cuda {

namespace {

// ---- rotation ----

// A block turns the pairs (i, i + half) of the first `heads` heads of a token of x: [T, row], where heads lie hd apart.
// An element that is turned costs 2w bytes and 3.5 FLOPs.
template <class T, int N>
__global__ void turn(Index row, Index hd, int heads, int half, float sign, In<std::int32_t> positions, In<float> table,
                     Out<T> x) {
  const Index token = blockIdx.x, turns = positions[token] * Index{half} * 2;
  for_row<N>(Index{heads} * half, [&](Index pair) {
    const int head = static_cast<int>(pair) / half, i = static_cast<int>(pair) % half;
    float cosine[N], sine[N];
    if constexpr (N == 1) {
      cosine[0] = table[turns + 2 * i];
      sine[0] = table[turns + 2 * i + 1];
    } else {
      for (int e = 0; e < N; e += 2) {
        const auto two = load<4>(table, turns + 2 * (i + e));
        cosine[e] = two[0];
        sine[e] = two[1];
        cosine[e + 1] = two[2];
        sine[e + 1] = two[3];
      }
    }
    const Index at = token * row + head * hd + i;
    auto a = load<N>(x, at), b = load<N>(x, at + half);
    for (int e = 0; e < N; ++e) {
      const float u = to_float(a[e]), v = to_float(b[e]), s = sign * sine[e];
      a[e] = from_float<T>(u * cosine[e] - v * s);
      b[e] = from_float<T>(u * s + v * cosine[e]);
    }
    store<N>(x, at, a);
    store<N>(x, at + half, b);
  });
}

// ---- QK-norm ----

constexpr int warps_of_block = 8, threads_of_block = warps_of_block * warp_size;
constexpr int most_pairs = 4;  // that a lane keeps of a head, which may have up to 256 elements

// How a head is taken as pairs of elements. First come `half` pairs that are turned, (i, i + half), and behind them
// `rest` pairs that are not, (i, i + rest). The last of those has no second element where they are odd in number.
struct Pairing {
  Index tokens;
  int heads, q_heads, k_heads, hd, half, rest;

  // Where the elements of pair i lie.
  __device__ int first(int i) const { return i < half ? i : i + half; }
  __device__ int second(int i) const { return first(i) + (i < half ? half : rest); }
};

// N consecutive pairs, which are moved at once: first the first elements of all of them, then the second ones.
template <int N>
struct Run {
  float values[2 * N] = {};
  __device__ float& operator[](int e) { return values[e]; }
  __device__ float operator[](int e) const { return values[e]; }
};
// How many of them a lane has.
template <int N>
constexpr int runs = most_pairs / N;

// Calls f(n, i) for this lane's runs of a head, where run n begins at pair i.
template <int N, class F>
__device__ void for_runs(const Pairing& s, F f) {
#pragma unroll
  for (int n = 0; n < runs<N>; ++n) {
    const int i = (static_cast<int>(threadIdx.x) % warp_size + n * warp_size) * N;
    if (i < s.half + s.rest) f(n, i);
  }
}

template <int N, class P>
__device__ Run<N> read(const Pairing& s, P head, int i) {
  Run<N> run;
  const auto first = load<N>(head, s.first(i));
  for (int e = 0; e < N; ++e) run[e] = to_float(first[e]);
  if (s.second(i) >= s.hd) return run;
  const auto second = load<N>(head, s.second(i));
  for (int e = 0; e < N; ++e) run[N + e] = to_float(second[e]);
  return run;
}
template <int N, class T>
__device__ void write(const Pairing& s, Out<T> head, int i, const Run<N>& run) {
  Pack<T, N> first, second;
  for (int e = 0; e < N; ++e) {
    first[e] = from_float<T>(run[e]);
    second[e] = from_float<T>(run[N + e]);
  }
  store<N>(head, s.first(i), first);
  if (s.second(i) < s.hd) store<N>(head, s.second(i), second);
}

// How this lane's runs are turned, which is the same in every head of a token: forth (sign 1) or back (-1).
template <int N>
struct Turns {
  float cosine[runs<N>][N], sine[runs<N>][N];

  __device__ Turns(const Pairing& s, float sign, In<std::int32_t> positions, In<float> table, Index t) {
    if (s.half == 0) return;
    const In<float> row = table + Index{positions[t]} * s.half * 2;
    for_runs<N>(s, [&](int n, int i) {
      if (i >= s.half) return;
      if constexpr (N == 1) {
        cosine[n][0] = row[2 * i];
        sine[n][0] = sign * row[2 * i + 1];
      } else {
        const auto two = load<4>(row, 2 * i);
        for (int e = 0; e < N; ++e) {
          cosine[n][e] = two[2 * e];
          sine[n][e] = sign * two[2 * e + 1];
        }
      }
    });
  }
  // Turns x, which is run n and begins at pair i.
  __device__ void turn(const Pairing& s, int n, int i, Run<N>& x) const {
    if (i >= s.half) return;
    for (int e = 0; e < N; ++e) {
      const float a = x[e], b = x[N + e];
      x[e] = a * cosine[n][e] - b * sine[n][e];
      x[N + e] = a * sine[n][e] + b * cosine[n][e];
    }
  }
};

// A block takes a token, and its warps the token's heads in turn. x, y: [T, heads, hd]; weight: [2, hd];
// inverse: [T, q_heads + k_heads]. An element costs 2w bytes and 7 FLOPs, 4 of them where it is not turned.
template <class T, int N>
__global__ void __launch_bounds__(threads_of_block)
    normalize(Pairing s, float eps, In<T> x, In<T> weight, In<std::int32_t> positions, In<float> table, Out<T> y,
              Out<float> inverse) {
  const Index t = blockIdx.x;
  const int normed = s.q_heads + s.k_heads;
  const Turns<N> turns(s, 1, positions, table, t);
  for (int head = static_cast<int>(threadIdx.x) / warp_size; head < s.heads; head += warps_of_block) {
    const Index at = (t * s.heads + head) * s.hd;
    Run<N> v[runs<N>];
    float squares = 0;
    for_runs<N>(s, [&](int n, int i) {
      v[n] = read<N>(s, x + at, i);
      for (int e = 0; e < 2 * N; ++e) squares += v[n][e] * v[n][e];
    });
    if (head < normed) {
      const float r = 1 / sqrtf(warp_sum(squares) / static_cast<float>(s.hd) + eps);
      if (threadIdx.x % warp_size == 0) inverse[t * normed + head] = r;
      for_runs<N>(s, [&](int n, int i) {
        const Run<N> w = read<N>(s, weight + (head < s.q_heads ? 0 : s.hd), i);
        for (int e = 0; e < 2 * N; ++e) v[n][e] *= r * w[e];
        turns.turn(s, n, i, v[n]);
      });
    }
    for_runs<N>(s, [&](int n, int i) { write<N>(s, y + at, i, v[n]); });
  }
}

// With g = dy turned back: dx = r (g w) - x r^3 / hd sum(g w x), dw = sum over rows of g x r. Each block takes every
// gridDim.x-th token, and each of its warps leaves the sums of g x r for queries and keys in partial: [2, warps, hd].
// An element costs 3w bytes and 13 FLOPs, 10 of them where it is not turned.
constexpr int multiprocessors = 132, blocks_of_each = 3;
template <class T, int N>
__global__ void __launch_bounds__(threads_of_block, blocks_of_each)
    normalize_gradient(Pairing s, In<T> dy, In<T> x, In<T> weight, In<float> inverse, In<std::int32_t> positions,
                       In<float> table, Out<T> dx, Out<float> partial) {
  const int warp = static_cast<int>(threadIdx.x) / warp_size, normed = s.q_heads + s.k_heads;
  Run<N> sums[2][runs<N>];
  for (Index t = blockIdx.x; t < s.tokens; t += gridDim.x) {
    const Turns<N> turns(s, -1, positions, table, t);
    for (int head = warp; head < s.heads; head += warps_of_block) {
      const Index at = (t * s.heads + head) * s.hd;
      Run<N> g[runs<N>], normal[runs<N>];
      for_runs<N>(s, [&](int n, int i) { g[n] = read<N>(s, dy + at, i); });
      if (head < normed) {
        const bool key = head >= s.q_heads;
        const float r = inverse[t * normed + head];
        float inner = 0;
        for_runs<N>(s, [&](int n, int i) {
          turns.turn(s, n, i, g[n]);
          normal[n] = read<N>(s, x + at, i);
          const Run<N> w = read<N>(s, weight + (key ? s.hd : 0), i);
          for (int e = 0; e < 2 * N; ++e) {
            normal[n][e] *= r;
            const float part = g[n][e] * normal[n][e];
            sums[0][n][e] += key ? 0.0f : part;
            sums[1][n][e] += key ? part : 0.0f;
            inner += part * w[e];
            g[n][e] *= w[e];
          }
        });
        inner = warp_sum(inner) / static_cast<float>(s.hd);
        for_runs<N>(s, [&](int n, int) {
          for (int e = 0; e < 2 * N; ++e) g[n][e] = r * (g[n][e] - normal[n][e] * inner);
        });
      }
      for_runs<N>(s, [&](int n, int i) { write<N>(s, dx + at, i, g[n]); });
    }
  }
  const Index row = Index{blockIdx.x} * warps_of_block + warp, rows = Index{gridDim.x} * warps_of_block;
  for_runs<N>(s, [&](int n, int i) {
    write<N>(s, partial + row * s.hd, i, sums[0][n]);
    write<N>(s, partial + (rows + row) * s.hd, i, sums[1][n]);
  });
}

// Calls f(pairing, T{}, N), where N pairs can be moved at once. operands: [.., hd] of one type, x first.
template <class F>
void with_pairing(const QkNorm& desc, ConstView table, std::initializer_list<ConstView> operands, F f) {
  const ConstView x = *operands.begin();
  const Index heads = x.dim(1), hd = x.dim(2), half = table ? table.dim(1) : 0;
  constexpr Index most = 2 * most_pairs * warp_size;
  SY_ASSERT(heads <= INT32_MAX && hd <= most, "qk_norm: {} heads of {}", heads, hd);
  const Pairing s{x.dim(0),
                  static_cast<int>(heads),
                  static_cast<int>(desc.q_heads),
                  static_cast<int>(desc.k_heads),
                  static_cast<int>(hd),
                  static_cast<int>(half),
                  static_cast<int>(blocks_of(hd - 2 * half, 2))};
  // Both sides of every run must begin at a pack, and so must its cosines and sines.
  const bool packed = hd % 4 == 0 && half % 2 == 0 && aligned<float, 4>(table, 0);
  with_type(x.dtype(),
            [&](auto zero) { with_packs<2>(packed ? hd : 1, operands, [&](auto packs) { f(s, zero, packs); }); });
}

}  // namespace

void CudaBackend::do_rope(View x, Index heads, ConstView positions, ConstView table, bool inverse) {
  const Index hd = x.dim(2), half = table.dim(1);
  SY_ASSERT(heads * half <= INT32_MAX, "rope: {} heads of {}", heads, hd);
  with_type(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    // Both halves of a head must begin at a pack, and so must the table.
    const bool aligned_table = aligned<float, 4>(table, 0);
    with_packs<pack_size<T>>(aligned_table && hd % pack_size<T> == 0 ? half : 1, {x}, [&](auto packs) {
      constexpr int N = packs;
      launch(context_, {.x = x.dim(0), .threads = row_threads(blocks_of(heads * half, N))}, turn<T, N>, x.dim(1) * hd,
             hd, static_cast<int>(heads), static_cast<int>(half), inverse ? -1.0f : 1.0f, in<std::int32_t>(positions),
             in<float>(table), out<T>(x));
    });
  });
}

void CudaBackend::do_qk_norm_forward(const QkNorm& desc, ConstView x, ConstView weight, ConstView positions,
                                     ConstView table, View y, View inverse) {
  with_pairing(desc, table, {x, weight, y}, [&](const Pairing& s, auto zero, auto packs) {
    using T = decltype(zero);
    launch(context_, {.x = s.tokens, .threads = threads_of_block}, normalize<T, packs>, s, desc.eps, in<T>(x),
           in<T>(weight), in<std::int32_t>(positions), in<float>(table), out<T>(y), out<float>(inverse));
  });
}

void CudaBackend::do_qk_norm_backward(const QkNorm& desc, ConstView dy, ConstView x, ConstView weight,
                                      ConstView inverse, ConstView positions, ConstView table, View dx, View dweight) {
  with_pairing(desc, table, {x, dy, weight, dx}, [&](const Pairing& s, auto zero, auto packs) {
    using T = decltype(zero);
    const Index blocks = std::min<Index>(s.tokens, multiprocessors * blocks_of_each), warps = blocks * warps_of_block;
    Workspace workspace(context_);
    const View partial = workspace.take({2 * warps, s.hd}, DType::f32);
    launch(context_, {.x = blocks, .threads = threads_of_block}, normalize_gradient<T, packs>, s, in<T>(dy), in<T>(x),
           in<T>(weight), in<float>(inverse), in<std::int32_t>(positions), in<float>(table), out<T>(dx),
           out<float>(partial));
    for (Index of : {0, 1})
      add_column_sums(context_, workspace, partial.rows(of * warps, warps), dweight.rows(of, 1).reshape({s.hd}));
  });
}

}  // namespace sy::cuda
