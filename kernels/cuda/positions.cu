// RoPE, and QK-norm of each head fused with RoPE.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/ops/qk_norm.h"
#include "kernels/ops/rope.h"

namespace sy::cuda {

namespace {

// ---- rotation ----

// A block rotates the pairs (i, i + half) of the first `heads` heads of a token of x: [T, row].
// Heads are hd elements apart. An element that is rotated costs 2w bytes and 3.5 FLOPs.
template <class T, int N>
__global__ void rope_halves(Index row, Index hd, int heads, int half, float sign, In<std::int32_t> positions,
                            In<float> table, Out<T> x) {
  const Index token = blockIdx.x, table_row = positions[token] * Index{half} * 2;
  for_row<N>(Index{heads} * half, [&](Index pair) {
    const int head = static_cast<int>(pair) / half, i = static_cast<int>(pair) % half;
    float cosine[N], sine[N];
    if constexpr (N == 1) {
      cosine[0] = table[table_row + 2 * i];
      sine[0] = table[table_row + 2 * i + 1];
    } else {
      for (int e = 0; e < N; e += 2) {
        const auto two = load<4>(table, table_row + 2 * (i + e));
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

// The same for neighbouring pairs, (2i, 2i + 1): N elements, a pack of whole pairs, or one pair if
// N is 1.
template <class T, int N>
__global__ void rope_interleaved(Index row, Index hd, int heads, int half, float sign, In<std::int32_t> positions,
                                 In<float> table, Out<T> x) {
  constexpr int pairs = N == 1 ? 1 : N / 2;
  const Index token = blockIdx.x, table_row = positions[token] * Index{half} * 2;
  for_row<pairs>(Index{heads} * half, [&](Index pair) {
    const int head = static_cast<int>(pair) / half, i = static_cast<int>(pair) % half;
    const Index at = token * row + head * hd + 2 * i;
    const auto rotate = [&](float u, float v, int e, float& a, float& b) {
      const float cosine = table[table_row + 2 * (i + e)], s = sign * table[table_row + 2 * (i + e) + 1];
      a = u * cosine - v * s;
      b = u * s + v * cosine;
    };
    float a, b;
    if constexpr (N == 1) {
      rotate(to_float(x[at]), to_float(x[at + 1]), 0, a, b);
      x[at] = from_float<T>(a);
      x[at + 1] = from_float<T>(b);
    } else {
      auto pack = load<N>(x, at);
      for (int e = 0; e < pairs; ++e) {
        rotate(to_float(pack[2 * e]), to_float(pack[2 * e + 1]), e, a, b);
        pack[2 * e] = from_float<T>(a);
        pack[2 * e + 1] = from_float<T>(b);
      }
      store<N>(x, at, pack);
    }
  });
}

// ---- QK-norm ----

constexpr int warps_of_block = 8, threads_of_block = warps_of_block * warp_size;
constexpr int max_pairs = 4;  // pairs of a head that a lane holds; a head has up to 256 elements

// Division of a head into pairs of elements. First come `half` pairs that are rotated, then `rest`
// pairs that are not. If the number of remaining elements is odd, the last pair has no second
// element.
struct Pairing {
  Index tokens;
  int heads, q_heads, k_heads, hd, half, rest;
  bool centred, each_head;  // LayerNorm; one weight for each head
  __device__ int weight_of(int head) const { return each_head ? head : head >= q_heads; }
};
// HalfPairs: (i, i + half), then (i, i + rest). N consecutive pairs are moved as two packs: their
// first and their second elements.
struct HalfPairs : Pairing {
  // Positions of the two elements of pair i.
  __device__ int first(int i) const { return i < half ? i : i + half; }
  __device__ int second(int i) const { return first(i) + (i < half ? half : rest); }

  // Calls f(size, element, index_of) for each pack of N consecutive pairs from pair i on. The pack
  // has `size` elements of the head, from `element` on. index_of maps an element of the pack to its
  // index in PairVector.
  template <int N, class F>
  __device__ void packs(int i, F f) const {
    f(PackSize<N>{}, first(i), [](int e) { return e; });
    if (second(i) < hd) f(PackSize<N>{}, second(i), [](int e) { return N + e; });
  }
};
// InterleavedPairs: (2i, 2i + 1). N consecutive pairs are one pack of 2N elements.
struct InterleavedPairs : Pairing {
  template <int N, class F>
  __device__ void packs(int i, F f) const {
    if constexpr (N == 1) {  // the head may end after the first element, and pairs may be unaligned
      f(PackSize<1>{}, 2 * i, [](int) { return 0; });
      if (2 * i + 1 < hd) f(PackSize<1>{}, 2 * i + 1, [](int) { return 1; });
    } else {
      f(PackSize<2 * N>{}, 2 * i, [](int e) { return e / 2 + e % 2 * N; });
    }
  }
};

// N consecutive pairs, which are moved at once: the first elements of all pairs, then the second
// ones.
template <int N>
struct PairVector {
  float values[2 * N] = {};
  __device__ float& operator[](int e) { return values[e]; }
  __device__ float operator[](int e) const { return values[e]; }
};
// Number of pair vectors of a lane.
template <int N>
constexpr int vectors_per_lane = max_pairs / N;

// Calls f(n, i) for this lane's pair vectors of a head. PairVector n begins at pair i.
template <int N, class F>
__device__ void for_pair_vectors(const Pairing& s, F f) {
#pragma unroll
  for (int n = 0; n < vectors_per_lane<N>; ++n) {
    const int i = (static_cast<int>(threadIdx.x) % warp_size + n * warp_size) * N;
    if (i < s.half + s.rest) f(n, i);
  }
}

template <int N, class S, class P>
__device__ PairVector<N> read(const S& s, P head, int i) {
  PairVector<N> vector;
  s.template packs<N>(i, [&](auto size, int element, auto index_of) {
    const auto pack = load<size.value>(head, element);
    for (int e = 0; e < size.value; ++e) vector[index_of(e)] = to_float(pack[e]);
  });
  return vector;
}
template <int N, class S, class T>
__device__ void write(const S& s, Out<T> head, int i, const PairVector<N>& vector) {
  s.template packs<N>(i, [&](auto size, int element, auto index_of) {
    Pack<T, size.value> pack;
    for (int e = 0; e < size.value; ++e) pack[e] = from_float<T>(vector[index_of(e)]);
    store<size.value>(head, element, pack);
  });
}

// Rotation of this lane's pair vectors, which is the same in every head of a token: forward (sign
// 1) or backward (-1).
template <int N>
struct Rotation {
  float cosine[vectors_per_lane<N>][N], sine[vectors_per_lane<N>][N];

  __device__ Rotation(const Pairing& s, float sign, In<std::int32_t> positions, In<float> table, Index t) {
    if (s.half == 0) return;
    const In<float> row = table + Index{positions[t]} * s.half * 2;
    for_pair_vectors<N>(s, [&](int n, int i) {
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
  // Rotates x, which is vector n and begins at pair i.
  __device__ void rotate(const Pairing& s, int n, int i, PairVector<N>& x) const {
    if (i >= s.half) return;
    for (int e = 0; e < N; ++e) {
      const float a = x[e], b = x[N + e];
      x[e] = a * cosine[n][e] - b * sine[n][e];
      x[N + e] = a * sine[n][e] + b * cosine[n][e];
    }
  }
};

// Subtracts the mean from a vector that begins at pair i.
template <int N, class S>
__device__ void centre(const S& s, int i, float mean, PairVector<N>& vector) {
  s.template packs<N>(i, [&](auto size, int, auto index_of) {
    for (int e = 0; e < size.value; ++e) vector[index_of(e)] -= mean;
  });
}

// Reads this lane's pair vectors of a head. For LayerNorm, it subtracts the head's mean.
template <int N, class S, class P>
__device__ void read_centred(const S& s, P head, PairVector<N> (&v)[vectors_per_lane<N>]) {
  float mean = 0;
  for_pair_vectors<N>(s, [&](int n, int i) {
    v[n] = read<N>(s, head, i);
    for (int e = 0; e < 2 * N; ++e) mean += v[n][e];
  });
  if (!s.centred) return;
  mean = warp_sum(mean) / static_cast<float>(s.hd);
  for_pair_vectors<N>(s, [&](int n, int i) { centre<N>(s, i, mean, v[n]); });
}

// A block takes a token, and its warps share the token's heads. An element costs 2w bytes and 8
// FLOPs, or 5 if it is not rotated; LayerNorm adds 2.
//   x, y: [T, heads, hd]; inverse: [T, q_heads + k_heads]
//   weight: [2, hd], or [q_heads + k_heads, hd] if each_head
template <class T, int N, class S>
__global__ void __launch_bounds__(threads_of_block)
    normalize(S s, float eps, float offset, In<T> x, In<T> weight, In<std::int32_t> positions, In<float> table,
              Out<T> y, Out<float> inverse) {
  const Index t = blockIdx.x;
  const int normed = s.q_heads + s.k_heads;
  const Rotation<N> rotation(s, 1, positions, table, t);
  for (int head = static_cast<int>(threadIdx.x) / warp_size; head < s.heads; head += warps_of_block) {
    const Index at = (t * s.heads + head) * s.hd;
    PairVector<N> v[vectors_per_lane<N>];
    if (head < normed) {
      read_centred<N>(s, x + at, v);
      float squares = 0;
      for_pair_vectors<N>(s, [&](int n, int) {
        for (int e = 0; e < 2 * N; ++e) squares += v[n][e] * v[n][e];
      });
      const float r = 1 / sqrtf(warp_sum(squares) / static_cast<float>(s.hd) + eps);
      if (threadIdx.x % warp_size == 0) inverse[t * normed + head] = r;
      for_pair_vectors<N>(s, [&](int n, int i) {
        const PairVector<N> w = read<N>(s, weight + s.weight_of(head) * s.hd, i);
        for (int e = 0; e < 2 * N; ++e) v[n][e] *= r * (offset + w[e]);
        rotation.rotate(s, n, i, v[n]);
      });
    } else {
      for_pair_vectors<N>(s, [&](int n, int i) { v[n] = read<N>(s, x + at, i); });
    }
    for_pair_vectors<N>(s, [&](int n, int i) { write<N>(s, y + at, i, v[n]); });
  }
}

// With g = dy rotated back, w the weight with its offset and v = (x - mean) r:
//   dx = r (g w - mean(g w) - v mean(g w v)), without mean(g w) for RMSNorm
//   dw = sum over rows of g v
//
// The warps of a block share every gridDim.x-th token with all of its heads. If each_head, a warp
// takes head blockIdx.y of every (8 gridDim.x)-th token. Each warp writes its sums of g v to a row
// of partial: [warps, weights, hd]. An element costs 3w bytes and 15 FLOPs, or 12 if it is not
// rotated; LayerNorm adds 4. A multiprocessor holds three blocks at once (sum_blocks).
template <class T, int N, bool each_head, class S>
__global__ void __launch_bounds__(threads_of_block, 3)
    normalize_gradient(S s, float offset, In<T> dy, In<T> x, In<T> weight, In<float> inverse,
                       In<std::int32_t> positions, In<float> table, Out<T> dx, Out<float> partial) {
  const int warp = static_cast<int>(threadIdx.x) / warp_size, normed = s.q_heads + s.k_heads;
  const Index row = Index{blockIdx.x} * warps_of_block + warp;
  const int first = each_head ? static_cast<int>(blockIdx.y) : warp, step = each_head ? s.heads : warps_of_block;
  PairVector<N> sums[each_head ? 1 : 2][vectors_per_lane<N>];
  for (Index t = each_head ? row : Index{blockIdx.x}; t < s.tokens;
       t += Index{gridDim.x} * (each_head ? warps_of_block : 1)) {
    const Rotation<N> rotation(s, -1, positions, table, t);
    for (int head = first; head < s.heads; head += step) {
      const Index at = (t * s.heads + head) * s.hd;
      PairVector<N> g[vectors_per_lane<N>];
      for_pair_vectors<N>(s, [&](int n, int i) { g[n] = read<N>(s, dy + at, i); });
      if (head < normed) {
        const bool key = head >= s.q_heads;
        const float r = inverse[t * normed + head];
        PairVector<N> normal[vectors_per_lane<N>];
        read_centred<N>(s, x + at, normal);
        float inner = 0, mean = 0;
        for_pair_vectors<N>(s, [&](int n, int i) {
          rotation.rotate(s, n, i, g[n]);
          const PairVector<N> w = read<N>(s, weight + s.weight_of(head) * s.hd, i);
          for (int e = 0; e < 2 * N; ++e) {
            normal[n][e] *= r;
            const float product = g[n][e] * normal[n][e];
            if constexpr (each_head) {
              sums[0][n][e] += product;
            } else {
              sums[0][n][e] += key ? 0.0f : product;
              sums[1][n][e] += key ? product : 0.0f;
            }
            inner += product * (offset + w[e]);
            g[n][e] *= offset + w[e];
            mean += g[n][e];
          }
        });
        inner = warp_sum(inner) / static_cast<float>(s.hd);
        mean = s.centred ? warp_sum(mean) / static_cast<float>(s.hd) : 0.0f;
        for_pair_vectors<N>(s, [&](int n, int) {
          for (int e = 0; e < 2 * N; ++e) g[n][e] = r * (g[n][e] - (normal[n][e] * inner + mean));
        });
      }
      for_pair_vectors<N>(s, [&](int n, int i) { write<N>(s, dx + at, i, g[n]); });
    }
  }
  if (each_head && first >= normed) return;
  for_pair_vectors<N>(s, [&](int n, int i) {
    if constexpr (each_head) {
      write<N>(s, partial + (row * normed + first) * s.hd, i, sums[0][n]);
    } else {
      write<N>(s, partial + row * 2 * s.hd, i, sums[0][n]);
      write<N>(s, partial + (row * 2 + 1) * s.hd, i, sums[1][n]);
    }
  });
}

// Calls f(pairing, T{}, PackSize<N>{}), where N pairs can be moved at once. operands: [.., hd] of
// one type, x first.
template <class F>
void with_pairing(const HeadQkNorm& desc, ConstView table, std::initializer_list<ConstView> operands, F f) {
  const ConstView x = *operands.begin();
  const Index heads = x.dim(1), hd = x.dim(2), half = table ? table.dim(1) : 0;
  constexpr Index max_width = 2 * max_pairs * warp_size;
  SY_ASSERT(heads <= INT32_MAX && hd <= max_width, "head_qk_norm: {} heads of {}", heads, hd);
  const Pairing s{x.dim(0),
                  static_cast<int>(heads),
                  static_cast<int>(desc.q_heads),
                  static_cast<int>(desc.k_heads),
                  static_cast<int>(hd),
                  static_cast<int>(half),
                  static_cast<int>(blocks_of(hd - 2 * half, 2)),
                  desc.kind == NormKind::layernorm,
                  desc.each_head};
  // Both sides of every pair vector must begin at a pack, and so must its cosines and sines.
  const bool packed = hd % 4 == 0 && half % 2 == 0 && aligned<float, 4>(table, 0);
  with_type(x.dtype(), [&](auto zero) {
    if (desc.pairs == RopePairs::half)
      with_packs<2>(packed ? hd : 1, operands, [&](auto packs) { f(HalfPairs{s}, zero, packs); });
    else  // packs of two pairs
      with_packs<4>(packed ? hd : 1, operands,
                    [&]<int N>(PackSize<N>) { f(InterleavedPairs{s}, zero, PackSize < N == 1 ? 1 : 2 > {}); });
  });
}

}  // namespace

void execute(CudaDevice& device, const ops::Rope& op) {
  Context& context = device.context();
  const Index hd = op.x.dim(2), half = op.table.dim(1);
  SY_ASSERT(op.heads * half <= INT32_MAX, "rope: {} heads of {}", op.heads, hd);
  const float sign = op.inverse ? -1.0f : 1.0f;
  // pairs: number of pairs that a thread rotates at once
  const auto rotate = [&](auto kernel, int pairs) {
    launch(context, {.x = op.x.dim(0), .threads = row_threads(blocks_of(op.heads * half, pairs))}, kernel,
           op.x.dim(1) * hd, hd, static_cast<int>(op.heads), static_cast<int>(half), sign, op.positions, op.table,
           op.x);
  };
  with_type(op.x.dtype(), [&]<class T>(T) {
    const bool packed = hd % pack_size<T> == 0;
    if (op.pairs == RopePairs::interleaved)
      return with_packs<pack_size<T>>(packed ? 2 * half : 1, {op.x},
                                      [&]<int N>(PackSize<N>) { rotate(rope_interleaved<T, N>, N == 1 ? 1 : N / 2); });
    // Both halves of a head must begin at a pack, and so must the table.
    with_packs<pack_size<T>>(packed && aligned<float, 4>(op.table, 0) ? half : 1, {op.x},
                             [&]<int N>(PackSize<N>) { rotate(rope_halves<T, N>, N); });
  });
}

void execute(CudaDevice& device, const ops::HeadQkNormForward& op) {
  with_pairing(op.desc, op.table, {op.x, op.weight, op.y}, [&]<class S, class T, int N>(const S& s, T, PackSize<N>) {
    launch(device.context(), {.x = s.tokens, .threads = threads_of_block}, normalize<T, N, S>, s, op.desc.eps,
           op.desc.offset, op.x, op.weight, op.positions, op.table, op.y, op.inverse);
  });
}

void execute(CudaDevice& device, const ops::HeadQkNormBackward& op) {
  Context& context = device.context();
  with_pairing(
      op.desc, op.table, {op.x, op.dy, op.weight, op.dx}, [&]<class S, class T, int N>(const S& s, T, PackSize<N>) {
        const Index weights = op.desc.weights(), heads = s.heads;
        const Index max_blocks = context.workspace_bytes / 2 / (warps_of_block * weights * s.hd * size_of(DType::f32));
        const Index blocks =
            op.desc.each_head
                ? std::min({blocks_of(s.tokens, warps_of_block), max_blocks, blocks_of(sum_blocks, heads)})
                : std::min({s.tokens, max_blocks, sum_blocks});
        SY_ASSERT(blocks > 0, "head_qk_norm_backward: {} weights of {}", weights, s.hd);
        Workspace workspace(context);
        const View partial = workspace.take({blocks * warps_of_block, weights * s.hd}, DType::f32);
        const auto start = [&](auto kernel, Index y) {
          launch(context, {.x = blocks, .y = y, .threads = threads_of_block}, kernel, s, op.desc.offset, op.dy, op.x,
                 op.weight, op.inverse, op.positions, op.table, op.dx, partial);
        };
        if (op.desc.each_head)
          start(normalize_gradient<T, N, true, S>, heads);
        else
          start(normalize_gradient<T, N, false, S>, 1);
        add_column_sums(context, workspace, partial, op.dweight.reshape(Shape{weights * s.hd}));
      });
}

}  // namespace sy::cuda
