// Router: scores, choice of experts, their gradient, and the load-balancing loss.
#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/formulas/score.h"
#include "kernels/ops/load_balancing.h"
#include "kernels/ops/random.h"
#include "kernels/ops/route.h"

namespace sy::cuda {

namespace {

using formulas::log_slope, formulas::min_score_sum, formulas::score_of;

struct Math {
  SY_HOST_DEVICE static float sigmoid(float z) { return 1 / (1 + expf(-z)); }
  SY_HOST_DEVICE static float softplus(float z) { return fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z))); }
  SY_HOST_DEVICE static float sqrt(float x) { return sqrtf(x); }
  SY_HOST_DEVICE static float max(float a, float b) { return fmaxf(a, b); }
};

struct Softmax {
  // Largest logit, 1 / sum exp(z - largest), log of the sum of exponentials.
  float largest, inverse, lse;
  __device__ float operator()(float z) const { return expf(z - largest) * inverse; }
};

// A warp computes the softmax of z: [e].
__device__ Softmax softmax(In<float> z, int e, int lane) {
  float largest = -INFINITY, sum = 0;
  for (int i = lane; i < e; i += warp_size) largest = fmaxf(largest, z[i]);
  largest = warp_max(largest);
  for (int i = lane; i < e; i += warp_size) sum += expf(z[i] - largest);
  sum = warp_sum(sum);
  return {largest, 1 / sum, largest + logf(sum)};
}

// A warp sums the scores of z: [e]; p is the softmax of z.
__device__ float sum_of_scores(Score score, In<float> z, int e, const Softmax& p, int lane) {
  float sum = 0;
  for (int i = lane; i < e; i += warp_size) sum += score_of<Math>(score, z[i], p(z[i]));
  return min_score_sum + warp_sum(sum);
}

// Numbers of a stream for rows of n.
struct Numbers {
  RandomDesc desc;
  Index n;
  In<Index> index;
  __device__ float operator()(Index i) const {
    return desc.scale * static_cast<float>(desc.number(index[i / n], i % n, n));
  }
};

// An element costs 4 bytes.
struct DrawNumbers {
  Numbers numbers;
  Out<float> x;
  template <int N>
  __device__ void at(Index i) const {
    for (int e = 0; e < N; ++e) x[i + e] = numbers(i + e);
  }
};

// y (+)= x * (1 + number). An element costs 2w bytes.
template <class T>
struct Jitter {
  Numbers numbers;
  bool accumulate;
  In<T> x;
  Out<T> y;
  template <int N>
  __device__ void at(Index i) const {
    for (int e = 0; e < N; ++e) {
      const float value = to_float(x[i + e]) * (1 + numbers(i + e));
      y[i + e] = from_float<T>(accumulate ? to_float(y[i + e]) + value : value);
    }
  }
};

// x += number * softplus(stddev). An element costs 12 bytes.
struct NoisyGating {
  Numbers numbers;
  In<float> stddev;
  Out<float> x;
  template <int N>
  __device__ void at(Index i) const {
    for (int e = 0; e < N; ++e) x[i + e] += numbers(i + e) * Math::softplus(stddev[i + e]);
  }
};

// dstddev = dx * number * sigmoid(stddev). An element costs 4 + 2w bytes.
template <class T>
struct NoisyGatingBackward {
  Numbers numbers;
  In<T> dx;
  In<float> stddev;
  Out<T> dstddev;
  template <int N>
  __device__ void at(Index i) const {
    for (int e = 0; e < N; ++e)
      dstddev[i + e] = from_float<T>(to_float(dx[i + e]) * numbers(i + e) * Math::sigmoid(stddev[i + e]));
  }
};

// Maps selection scores to integers in the same order, all above 0, so that 0 can mark a chosen
// expert. A NaN comes last.
__device__ std::uint32_t key_of(float x) {
  return x != x ? 1 : ordered_bits(x);
}
__device__ float value_of(std::uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// A warp returns the index of the largest of keys: [n], the lowest of equal ones, and sets that key
// to 0. Lane l has written the keys l, l + 32, ..., and no other lane reads them.
__device__ int remove_largest(std::uint32_t* keys, int n, int lane) {
  std::uint32_t best = 0;
  int index = 0;
  for (int i = lane; i < n; i += warp_size)
    if (keys[i] > best) {
      best = keys[i];
      index = i;
    }
  for (int distance = warp_size / 2; distance > 0; distance /= 2) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, best, distance);
    const int other_index = __shfl_xor_sync(0xffffffffu, index, distance);
    if (other > best || (other == best && other_index < index)) {
      best = other;
      index = other_index;
    }
  }
  if (index % warp_size == lane) keys[index] = 0;
  return index;
}

// A warp clears the keys of all experts outside of the best groups. group_keys: [desc.groups],
// scratch memory.
__device__ void clear_other_groups(const RouteDesc& desc, std::uint32_t* keys, std::uint32_t* group_keys, int e,
                                   int lane) {
  const int per_group = e / desc.groups;
  __syncwarp();
  for (int g = lane; g < desc.groups; g += warp_size) {
    std::uint32_t first = 0, second = 0;
    for (int i = g * per_group; i < (g + 1) * per_group; ++i) {
      const std::uint32_t key = keys[i];
      if (key > first) {
        second = first;
        first = key;
      } else if (key > second) {
        second = key;
      }
    }
    if (desc.group_score == GroupScore::max) second = 0;
    group_keys[g] = key_of(value_of(first) + (second == 0 ? 0.0f : value_of(second)));
  }
  for (int i = 0; i < desc.topk_groups; ++i) remove_largest(group_keys, desc.groups, lane);
  __syncwarp();
  for (int i = lane; i < e; i += warp_size)
    if (group_keys[i / per_group] != 0) keys[i] = 0;
  __syncwarp();
}

// A warp scores a token and chooses its k best experts one by one. The warps of a block share a
// chunk of tokens within a segment. The block counts the chunk's assignments and sums its
// probabilities in shared memory, with separate sums for each warp. A logit costs 4 bytes and 7
// FLOPs, 10 with sigmoid scores, and k comparisons in shared memory. A token costs 8 k bytes more.
//   counts, probability: [segments * chunks, e]
//   z_squared: [blocks] sums over all chunks of a block
//   replay: `experts` holds the choice, and is not written
__global__ void choose_experts(RouteDesc desc, bool replay, Index segments, Index chunks, Index segment_tokens, int e,
                               In<float> logits, In<float> bias, In<float> noise, In<std::int32_t> token_mask,
                               Out<std::int32_t> experts, Out<float> weights, Out<std::int32_t> counts,
                               Out<float> probability, Out<double> z_squared) {
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size, warps = blockDim.x / warp_size;
  int* const count = reinterpret_cast<int*>(dynamic_shared());  // [e]
  float* const sums = reinterpret_cast<float*>(count + e);      // [warps, e]
  // [warps, e + desc.groups]
  auto* const all_keys = reinterpret_cast<std::uint32_t*>(sums + warps * e);
  float* const sum_p = sums + warp * e;
  std::uint32_t* const keys = all_keys + warp * (e + desc.groups);
  const Index k = desc.top_k, chunk_tokens = (segment_tokens + chunks - 1) / chunks;
  double sum_z = 0;

  for (Index item = blockIdx.x; item < segments * chunks; item += gridDim.x) {
    for (int i = threadIdx.x; i < e; i += blockDim.x) count[i] = 0;
    for (int i = lane; i < e; i += warp_size) sum_p[i] = 0;
    __syncthreads();
    const Index segment_begin = item / chunks * segment_tokens, begin = segment_begin + item % chunks * chunk_tokens;
    const Index end = min(begin + chunk_tokens, segment_begin + segment_tokens);
    for (Index t = begin + warp; t < end; t += warps) {
      if (token_mask && token_mask[t] == 0) {
        for (Index j = lane; j < k; j += warp_size) {
          experts[t * k + j] = -1;
          weights[t * k + j] = 0;
        }
        continue;
      }
      const In<float> z = logits + t * e;
      const Softmax p = softmax(z, e, lane);
      sum_z += static_cast<double>(p.lse) * p.lse;
      const float all = desc.balances_by_score() ? sum_of_scores(desc.score, z, e, p, lane) : 1.0f;
      for (int i = lane; i < e; i += warp_size) {
        const float probable = p(z[i]), score = score_of<Math>(desc.score, z[i], probable);
        sum_p[i] += desc.balances_by_score() ? score / all : probable;
        const float select = desc.select_by_logit ? z[i] : score;
        const float biased = bias ? select + bias[i] : select;
        keys[i] = key_of(noise ? biased + noise[t * e + i] : biased);
      }
      if (desc.topk_groups < desc.groups) clear_other_groups(desc, keys, keys + e, e, lane);
      float sum = min_score_sum;
      for (Index j = 0; j < k; ++j) {
        const int best = replay ? experts[t * k + j] : remove_largest(keys, e, lane);
        const float score = score_of<Math>(desc.score, z[best], p(z[best]));
        sum += score;
        if (j % warp_size != lane) continue;
        if (!replay) experts[t * k + j] = best;
        weights[t * k + j] = score;
        atomicAdd(&count[best], 1);
      }
      const float divisor = desc.renormalize ? sum : 1.0f;
      for (Index j = lane; j < k; j += warp_size) weights[t * k + j] = desc.scale * (weights[t * k + j] / divisor);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < e; i += blockDim.x) {
      float sum = 0;
      for (int w = 0; w < warps; ++w) sum += sums[w * e + i];
      counts[item * e + i] = count[i];
      probability[item * e + i] = sum;
    }
    __syncthreads();
  }
  sum_z = block_sum(lane == 0 ? sum_z : 0.0);
  if (threadIdx.x == 0) z_squared[blockIdx.x] = sum_z;
}

// A warp sums the chunks of one segment and expert; n = segments * e. The last block sums the
// squares. An expert of a chunk costs 8 bytes and 1 FLOP.
__global__ void sum_chunks(Index n, Index chunks, int e, In<std::int32_t> chunk_counts, In<float> chunk_probability,
                           Index squares, In<double> block_squares, Out<std::int32_t> counts, Out<float> probability,
                           Out<double> z_squared) {
  if (blockIdx.x == gridDim.x - 1) {
    double sum = 0;
    for (Index i = threadIdx.x; i < squares; i += blockDim.x) sum += block_squares[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) z_squared[0] = sum;
    return;
  }
  const int lane = threadIdx.x % warp_size;
  const Index to = (static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x) / warp_size;
  if (to >= n) return;
  const Index first = to / e * chunks * e + to % e;
  int count = 0;
  float sum = 0;
  for (Index chunk = lane; chunk < chunks; chunk += warp_size) {
    count += chunk_counts[first + chunk * e];
    sum += chunk_probability[first + chunk * e];
  }
  count = warp_sum(count);
  sum = warp_sum(sum);
  if (lane == 0) {
    counts[to] = count;
    probability[to] = sum;
  }
}

// Gradient of the router; a warp takes a token. s are the scores, p is the softmax, and c =
// dweights * scale.
//   renormalized, S = sum_j s_j:   ds_j = (c_j - sum_i c_i s_i / S) / S,   otherwise   ds_j = c_j
//   softmax: dz = s * (ds - sum_i ds_i s_i),   sigmoid: dz = ds * s * (1 - s)
//   other scores: dz = ds * s * log_slope
//   dz += p * (dprobability - sum_i dprobability_i p_i) + z_factor * 2 * logsumexp * p
//   balances_by_score, q = s / sum_i s_i: dz += p * (...) becomes
//     dz += q * log_slope * (dprobability - sum_i dprobability_i q_i)
// A logit costs 4 + w bytes and 14 FLOPs.
template <class T>
__global__ void route_gradient(RouteDesc desc, Index tokens, Index segment_tokens, int e, In<float> logits,
                               In<std::int32_t> experts, In<float> dweights, In<float> dprobability, float z_factor,
                               Out<T> dlogits) {
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size, warps = blockDim.x / warp_size;
  // [e] of each warp
  float* const through_weights = reinterpret_cast<float*>(dynamic_shared()) + warp * e;
  const Index t = static_cast<Index>(blockIdx.x) * warps + warp, k = desc.top_k;
  if (t >= tokens) return;
  const In<float> z = logits + t * e, dp = dprobability + t / segment_tokens * e, dw = dweights + t * k;
  const In<std::int32_t> chosen = experts + t * k;
  if (chosen[0] < 0) {
    for (int i = lane; i < e; i += warp_size) dlogits[t * e + i] = from_float<T>(0);
    return;
  }
  const Softmax p = softmax(z, e, lane);

  const bool by_score = desc.balances_by_score();
  const float scores = by_score ? sum_of_scores(desc.score, z, e, p, lane) : 1.0f;
  // inner: the sum of d p, where d is the whole gradient with respect to p (or q)
  float sum = 0, sum_c_s = 0, inner = 0;
  for (Index j = lane; j < k; j += warp_size) {
    const float s = score_of<Math>(desc.score, z[chosen[j]], p(z[chosen[j]]));
    sum += s;
    sum_c_s += desc.scale * dw[j] * s;
  }
  sum = warp_sum(sum) + min_score_sum;
  sum_c_s = warp_sum(sum_c_s);
  for (int i = lane; i < e; i += warp_size) {
    through_weights[i] = 0;
    inner += dp[i] * (by_score ? score_of<Math>(desc.score, z[i], p(z[i])) / scores : p(z[i]));
  }
  __syncwarp();
  for (Index j = lane; j < k; j += warp_size) {
    const float zj = z[chosen[j]], s = score_of<Math>(desc.score, zj, p(zj)), c = desc.scale * dw[j];
    const float ds = desc.renormalize ? (c - sum_c_s / sum) / sum : c;
    if (desc.score == Score::softmax) inner += ds * s;
    through_weights[chosen[j]] = ds * s * log_slope<Math>(desc.score, zj, s);
  }
  __syncwarp();
  inner = warp_sum(inner);
  const float through_z = z_factor * 2 * p.lse;
  for (int i = lane; i < e; i += warp_size) {
    float dz = p(z[i]) * (dp[i] + (through_z - inner));
    if (by_score) {
      const float s = score_of<Math>(desc.score, z[i], p(z[i]));
      dz = p(z[i]) * through_z + s / scores * log_slope<Math>(desc.score, z[i], s) * (dp[i] - inner);
    }
    dlogits[t * e + i] = from_float<T>(dz + through_weights[i]);
  }
}

// A block takes an expert (x) of a layer (y), and its warps share the segments. A warp sums the
// expert's assignments in the segment's scope and computes the gradient and the loss. losses:
// [layers, e], the experts' shares of the loss. A segment of an expert costs 12 bytes, and 4 for
// each segment of its scope and each layer that shares the loss.
__global__ void balance_expert(LoadBalancingDesc desc, Index segments, Index scopes, Index e, In<std::int32_t> counts,
                               In<std::int32_t> scope_counts, In<float> probability, In<std::int32_t> tokens_per_expert,
                               Out<float> dprobability, Out<double> sums, Out<double> losses) {
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size, warps = blockDim.x / warp_size;
  const Index x = blockIdx.x, l = blockIdx.y, layers = gridDim.y;
  const Index of = desc.together ? 0 : l, balanced = desc.together ? layers : 1;
  double assigned = 0, probable = 0, loss = 0;
  for (Index g = warp; g < segments; g += warps) {
    const Index scope = min(scopes - 1, (desc.first + g) / desc.per_scope), here = (l * segments + g) * e + x;
    Index in_scope = 0;
    for (Index n = lane; n < desc.per_scope * balanced; n += warp_size) {
      const Index i = scope * desc.per_scope + n / balanced, layer = of + n % balanced;
      in_scope += scope_counts[((i / segments * layers + layer) * segments + i % segments) * e + x];
    }
    const double gradient = desc.factor * static_cast<double>(warp_sum(in_scope));
    if (lane != 0) continue;
    dprobability[here] = static_cast<float>(gradient);
    assigned += counts[here];
    probable += probability[here];
    loss += gradient * probability[here];
  }
  assigned = block_sum(assigned);
  probable = block_sum(probable);
  loss = block_sum(loss);
  if (!sums || threadIdx.x != 0) return;
  const RouterSums at{e};
  const Out<double> of_layer = sums + l * at.size();
  of_layer[at.routed() + x] += assigned;
  of_layer[at.dropped() + x] += assigned - tokens_per_expert[l * e + x];
  of_layer[at.probability() + x] += probable;
  losses[l * e + x] = loss;
}

// A block sums a layer's losses: [layers, e]. sums: [layers, RouterSums of e] += the load-balancing
// loss and the z-loss.
__global__ void add_losses(Index e, In<double> losses, double z_factor, In<double> z_squared, Out<double> sums) {
  const Index l = blockIdx.x;
  double sum = 0;
  for (Index i = threadIdx.x; i < e; i += blockDim.x) sum += losses[l * e + i];
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  const RouterSums at{e};
  sums[l * at.size() + at.loss()] += sum;
  sums[l * at.size() + at.loss() + 1] += z_factor * z_squared[l];
}

// Number of warps of a block with `fixed` floats of shared memory and `of_warp` more per warp. It
// is at least 1 and at most 8, within the shared memory that every block may use.
int warps_for(Index fixed, Index of_warp) {
  constexpr Index shared_floats = 48 * 1024 / sizeof(float);
  return static_cast<int>(std::clamp<Index>((shared_floats - fixed) / of_warp, 1, 8));
}

}  // namespace

void execute(CudaDevice& device, const ops::Draw& op) {
  const Numbers numbers{op.desc, op.x.dim(1), in<Index>(op.index)};
  for_elements(device.context(), op.x.elements(), {}, DrawNumbers{numbers, out<float>(op.x)});
}

void execute(CudaDevice& device, const ops::Jitter& op) {
  const Numbers numbers{op.desc, op.x.dim(1), in<Index>(op.index)};
  with_type(op.x.dtype(), [&]<class T>(T) {
    for_elements(device.context(), op.x.elements(), {}, Jitter<T>{numbers, op.accumulate, in<T>(op.x), out<T>(op.y)});
  });
}

void execute(CudaDevice& device, const ops::NoisyGatingForward& op) {
  const Numbers numbers{op.desc, op.x.dim(1), in<Index>(op.index)};
  for_elements(device.context(), op.x.elements(), {}, NoisyGating{numbers, in<float>(op.stddev), out<float>(op.x)});
}

void execute(CudaDevice& device, const ops::NoisyGatingBackward& op) {
  const Numbers numbers{op.desc, op.dx.dim(1), in<Index>(op.index)};
  with_type(op.dx.dtype(), [&]<class T>(T) {
    for_elements(device.context(), op.dx.elements(), {},
                 NoisyGatingBackward<T>{numbers, in<T>(op.dx), in<float>(op.stddev), out<T>(op.dstddev)});
  });
}

void execute(CudaDevice& device, const ops::RouteForward& op) {
  const Index tokens = op.logits.dim(0), e = op.logits.dim(1), segments = op.counts.dim(0),
              segment_tokens = tokens / segments;
  const int warps = warps_for(e, 2 * e + op.desc.groups);
  const Index chunks = std::clamp<Index>(sum_blocks / segments, 1, blocks_of(segment_tokens, warps));
  const Index blocks = std::min(segments * chunks, 4 * sum_blocks);
  Workspace workspace(device.context());
  const View squares = workspace.take({blocks}, DType::f64);
  // If each chunk is a whole segment, its sums are the results.
  const Index sums = chunks > 1 ? segments * e : 0;
  View chunk_counts, chunk_probability;
  if (sums > 0) {
    chunk_counts = workspace.take({segments * chunks, e}, DType::i32);
    chunk_probability = workspace.take({segments * chunks, e}, DType::f32);
  }
  const Index shared_bytes = (e + warps * (2 * e + op.desc.groups)) * Index{sizeof(float)};
  launch(device.context(), {.x = blocks, .threads = warps * warp_size, .shared_bytes = shared_bytes}, choose_experts,
         op.desc, op.replay, segments, chunks, segment_tokens, static_cast<int>(e), op.logits, op.bias, op.noise,
         op.token_mask, op.experts, op.weights, out<std::int32_t>(sums > 0 ? chunk_counts : op.counts),
         out<float>(sums > 0 ? chunk_probability : op.probability), out<double>(squares));
  launch(device.context(), {.x = blocks_of(sums * warp_size, 256) + 1}, sum_chunks, sums, chunks, static_cast<int>(e),
         chunk_counts, chunk_probability, blocks, squares, op.counts, op.probability, op.z_squared);
}

void execute(CudaDevice& device, const ops::RouteBackward& op) {
  const Index tokens = op.logits.dim(0), e = op.logits.dim(1);
  const int warps = warps_for(0, e);
  const Grid grid{
      .x = blocks_of(tokens, warps), .threads = warps * warp_size, .shared_bytes = warps * e * Index{sizeof(float)}};
  with_type(op.dlogits.dtype(), [&]<class T>(T) {
    launch(device.context(), grid, route_gradient<T>, op.desc, tokens, tokens / op.dprobability.dim(0),
           static_cast<int>(e), op.logits, op.experts, op.dweights, op.dprobability, op.z_factor, op.dlogits);
  });
}

void execute(CudaDevice& device, const ops::LoadBalancingLoss& op) {
  const Index layers = op.counts.dim(0), segments = op.counts.dim(1), e = op.counts.dim(2);
  const Index scopes = op.scope_counts.dim(0) * segments / op.desc.per_scope;
  const View losses = Workspace(device.context()).take({layers, e}, DType::f64);
  launch(device.context(), {.x = e, .y = layers}, balance_expert, op.desc, segments, scopes, e, op.counts,
         op.scope_counts, op.probability, op.tokens_per_expert, op.dprobability, op.sums, losses);
  if (!op.sums) return;
  launch(device.context(), {.x = layers}, add_losses, e, losses, op.desc.z_factor, op.z_squared, op.sums);
}

}  // namespace sy::cuda
